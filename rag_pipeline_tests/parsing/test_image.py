from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from rag_pipeline.core.parsed_document import BlockType, PageState, ParsedDocument
from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.errors import CorruptDocumentError, DocumentTooLargeError, EmptyDocumentError
from rag_pipeline.parsing.image import ImageParser, tiles
from rag_pipeline.parsing.ocr import OcrLine
from rag_pipeline.parsing.pdf.scans import words_of_lines
from rag_pipeline.parsing.pool import ParserPool

SENTENCE = "The supplier must answer within ninety days."


def picture(*lines: str, size: tuple[int, int] = (900, 120), mode: str = "RGB") -> Image.Image:
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for index, line in enumerate(lines):
        draw.text((30, 30 + 60 * index), line, fill="black", font=ImageFont.load_default(36))
    return image.convert(mode)


def similar(text: str, expected: str) -> bool:
    """Whether nine of ten characters agree: the model reads some pairs of letters twice."""
    return SequenceMatcher(None, text, expected).ratio() > 0.9


def parse(path: Path, limits: ParseLimits | None = None) -> ParsedDocument:
    return ImageParser().parse(ParseRequest(path=path, file_name=path.name, limits=limits or ParseLimits()))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param("a.jpg", "CMYK", id="jpg-cmyk"),
        pytest.param("a.webp", "RGB", id="webp"),
        pytest.param("a.tiff", "1", id="tiff-black-and-white"),
    ],
)
def test_text_in_a_picture_is_read(tmp_path: Path, name: str, mode: str) -> None:
    picture(SENTENCE, mode=mode).save(tmp_path / name)
    document = parse(tmp_path / name)
    assert similar(document.text, SENTENCE)
    (page,) = document.pages
    assert (page.number, page.state) == (1, PageState.OCR)
    box = document.blocks[0].bbox
    assert box is not None
    assert document.blocks[0].page == 1
    assert box.top > 10
    assert box.bottom < 90


def test_black_text_on_a_transparent_ground_is_read(tmp_path: Path) -> None:
    image = picture(SENTENCE).convert("RGBA")
    pixels = np.asarray(image).copy()
    pixels[..., 3] = 255 - pixels[..., 0]
    pixels[..., :3] = 0
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert similar(parse(tmp_path / "a.png").text, SENTENCE)


def test_the_camera_orientation_is_respected(tmp_path: Path) -> None:
    image = picture(SENTENCE).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.jpg", exif=exif)
    document = parse(tmp_path / "a.jpg")
    assert similar(document.text, SENTENCE)
    assert document.warnings == ()


def test_frames_of_a_tiff_are_pages_and_blank_ones_count(tmp_path: Path) -> None:
    frames = [picture("First page of the scan"), picture(), picture("Third page of the scan")]
    frames[0].save(tmp_path / "scan.tiff", save_all=True, append_images=frames[1:])
    document = parse(tmp_path / "scan.tiff")
    assert [page.state for page in document.pages] == [PageState.OCR, PageState.BLANK, PageState.OCR]
    first, third = document.blocks
    assert (first.page, third.page) == (1, 3)
    assert similar(document.block_text(third), "Third page of the scan")


def test_a_damaged_frame_fails_alone(tmp_path: Path) -> None:
    frames = [picture("First page of the scan"), picture("Second page of the scan")]
    path = tmp_path / "scan.tiff"
    frames[0].save(path, save_all=True, append_images=frames[1:], compression="tiff_lzw")
    with Image.open(path) as image:
        image.seek(1)
        start = image.tag_v2[273][0]  # type: ignore[attr-defined]
    content = bytearray(path.read_bytes())
    content[start : start + 400] = b"\xff" * 400
    path.write_bytes(content)
    document = parse(path)
    assert [page.state for page in document.pages] == [PageState.OCR, PageState.FAILED]
    assert "page 2 is damaged and could not be read" in document.warnings


def test_a_table_becomes_rows(tmp_path: Path) -> None:
    image = Image.new("RGB", (900, 320), "white")
    draw = ImageDraw.Draw(image)
    cells = [["Fruit", "January", "February"], ["Apple", "110", "210"], ["Olive", "120", "220"], ["Plum", "130", "230"]]
    for row, texts in enumerate(cells):
        for column, text in enumerate(texts):
            draw.text((40 + 300 * column, 30 + 65 * row), text, fill="black", font=ImageFont.load_default(36))
    image.save(tmp_path / "table.png")
    (block,) = parse(tmp_path / "table.png").blocks
    assert block.type is BlockType.TABLE
    assert [list(row) for row in block.rows] == cells


def test_a_picture_without_text_has_no_content_and_says_so(tmp_path: Path) -> None:
    picture().save(tmp_path / "blank.png")
    document = parse(tmp_path / "blank.png")
    assert not document.has_content
    assert document.pages[0].state is PageState.BLANK
    assert document.warnings == ("no readable text was found in the image",)


def truncated(folder: Path) -> bytes:
    picture(SENTENCE).save(folder / "whole.png")
    return (folder / "whole.png").read_bytes()[:400]


def test_damaged_and_empty_files(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    for content in (truncated(tmp_path), b"no image at all", b"\x89PNG\r\n\x1a\n"):
        path.write_bytes(content)
        with pytest.raises(CorruptDocumentError, match="damaged"):
            parse(path)
    path.write_bytes(b"")
    with pytest.raises(EmptyDocumentError):
        parse(path)


def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    Image.new("1", (30_000, 5_000)).save(tmp_path / "bomb.png")
    with pytest.raises(DocumentTooLargeError, match="pixels"):
        parse(tmp_path / "bomb.png")


def test_too_many_pages_are_refused(tmp_path: Path) -> None:
    frame = picture(size=(20, 20))
    frame.save(tmp_path / "scan.tiff", save_all=True, append_images=[frame, frame])
    with pytest.raises(DocumentTooLargeError, match="3 pages"):
        parse(tmp_path / "scan.tiff", ParseLimits(max_pages=2))


@pytest.fixture
def long_image() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """1,000 rows of texture with a blank strip every 50 rows."""
    pixels = np.random.default_rng(7).integers(0, 255, (1_000, 50, 3), dtype=np.uint8)
    for row in range(40, 1_000, 50):
        pixels[row : row + 10] = 255
    return pixels


def test_long_images_are_cut_between_lines(long_image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    parts = list(tiles(long_image, side=300))
    assert np.array_equal(np.concatenate([tile for _, tile in parts]), long_image)
    assert len(parts) > 1
    assert all(long_image[top].min() == 255 for top, _ in parts[1:])
    assert [top for top, _ in tiles(long_image, side=1_000)] == [0]


def test_words_stand_where_their_letters_stand() -> None:
    line = OcrLine(text="ab cd", left=0, top=0, right=100, bottom=20, score=1.0)
    first, second = words_of_lines([line], points_per_pixel=0.5)
    assert (first.text, second.text) == ("ab", "cd")
    assert first.left < first.right < second.left < second.right < 50
    assert first.end < second.start


def test_a_thin_strip_is_read_in_little_memory(tmp_path: Path) -> None:
    """The detection enlarges an image until its shorter side has 736 pixels, a strip to 10 million."""
    picture("The quick brown fox jumps over the lazy dog", size=(2400, 100)).save(tmp_path / "strip.png")
    with ParserPool(workers=1) as pool:
        limits = ParseLimits(memory_bytes=700_000_000)
        request = ParseRequest(path=tmp_path / "strip.png", file_name="strip.png", limits=limits)
        [outcome] = pool.parse([("strip", request)], tmp_path)
    assert outcome.error is None
    assert outcome.summary is not None
    assert similar(outcome.summary.excerpt, "The quick brown fox jumps over the lazy dog")
