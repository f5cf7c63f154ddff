"""Everything around the text: fields, notes, links, images, labels, OCR decisions, damaged and locked files."""

import io

import pytest
from PIL import Image, ImageDraw, ImageFont

from rag_pipeline.core.parsed_document import BlockType, PageState, ParsedDocument
from rag_pipeline.core.ports import ParseLimits
from rag_pipeline.errors import (
    CorruptDocumentError,
    DocumentTooLargeError,
    EmptyDocumentError,
    EncryptedDocumentError,
    InvalidDocumentError,
)
from rag_pipeline_tests.parsing.pdf.conftest import Parse
from rag_pipeline_tests.parsing.pdf.pdf_files import Page, at, gray_image, pdf

WIDGET = "<</Type/Annot/Subtype/Widget"


def of_type(document: ParsedDocument, type: BlockType) -> list[str]:
    return [document.block_text(block) for block in document.blocks if block.type is type]


def form_pdf() -> bytes:
    annotations = [
        f"{WIDGET}/FT/Tx/T(name)/V(Marta Quill)/Rect[200 690 400 710]/F 4/DA(/Helv 10 Tf)>>",
        f"{WIDGET}/FT/Btn/T(consent)/V/Yes/AS/Yes/Rect[200 660 212 672]/F 4>>",
        f"{WIDGET}/FT/Tx/T(secret)/V(HIDDEN-VALUE)/Rect[200 600 300 620]/F 2/DA(/Helv 10 Tf)>>",
        f"{WIDGET}/FT/Tx/T(pin)/Ff 8192/V(PASSWORD-VALUE)/Rect[200 560 300 580]/F 4/DA(/Helv 10 Tf)>>",
        "<</Type/Annot/Subtype/FreeText/Contents(Approved by desk 4)/Rect[72 500 300 520]/F 4/DA(/Helv 10 Tf)>>",
        "<</Type/Annot/Subtype/Text/Contents(HIDDEN-NOTE)/Rect[72 500 300 520]/F 2>>",
        "<</Type/Annot/Subtype/Link/Rect[60 730 300 760]/A<</S/URI/URI(https://example.org/terms)>>>>",
    ]
    content = at(72, 740, "See our terms.") + at(72, 695, "Applicant name:") + at(72, 662, "I consent:")
    # Objects 3 and 4 are the information dictionary and the page's content; the annotations follow.
    fields = " ".join(f"{number} 0 R" for number in range(5, 9))
    form = f"/AcroForm<</NeedAppearances true/Fields[{fields}]>>"
    return pdf(Page(content=content, annotations=annotations), catalog=form)


def test_field_values_stand_beside_their_labels(parse: Parse) -> None:
    document = parse(form_pdf())
    assert of_type(document, BlockType.FORM_FIELD) == ["Applicant name: Marta Quill", "I consent: [x]"]


def test_visible_notes_are_kept_and_hidden_values_are_not(parse: Parse) -> None:
    document = parse(form_pdf())
    assert of_type(document, BlockType.ANNOTATION) == ["Approved by desk 4"]
    for hidden in ("HIDDEN-VALUE", "PASSWORD-VALUE", "HIDDEN-NOTE"):
        assert hidden not in document.text


def test_a_link_is_kept_with_the_text_it_lies_on(parse: Parse) -> None:
    block = next(block for block in parse(form_pdf()).blocks if block.metadata)
    assert block.metadata == {"href": "https://example.org/terms"}


def test_labels_and_metadata_are_kept_beside_page_numbers(parse: Parse) -> None:
    pages = [Page(content=at(72, 700, text)) for text in ("preface", "more preface", "chapter")]
    labels = "/PageLabels<</Nums[0<</S/r>>2<</S/D>>]>>"
    document = parse(pdf(*pages, catalog=labels, info="/Title(Field notes)/Author(M. Quill)"))
    assert [(page.number, page.label) for page in document.pages] == [(1, "i"), (2, "ii"), (3, "1")]
    assert [block.page for block in document.blocks] == [1, 2, 3]
    assert document.metadata["title"] == "Field notes"
    assert document.metadata["author"] == "M. Quill"


def test_images_are_extracted_once_with_their_place(parse: Parse) -> None:
    image = gray_image(64, 48, bytes(range(256)) * 12)
    drawn = "q 128 0 0 96 100 500 cm /I1 Do Q\n" + at(100, 485, "Figure 1: A gradient")
    page = Page(content=drawn, xobjects={"I1": image})
    document = parse(pdf(page, page))
    [found] = document.images
    assert (found.page, found.media_type, found.width, found.height) == (1, "image/png", 64, 48)
    assert found.bbox is not None
    assert (found.bbox.left, found.bbox.top, found.bbox.right, found.bbox.bottom) == (100, 196, 228, 292)
    assert found.description == "Figure 1: A gradient"
    with Image.open(io.BytesIO(found.content)) as picture:
        assert picture.size == (64, 48)


def scan(text: str, *, degrees: int = 0) -> bytes:
    picture = Image.new("L", (1000, 500), 255)
    ImageDraw.Draw(picture).text((60, 200), text, fill=0, font=ImageFont.load_default(48))
    picture = picture.rotate(degrees, expand=True)
    return gray_image(picture.width, picture.height, picture.tobytes())


def test_pages_without_text_layer_are_read_by_ocr_and_numbers_do_not_shift(parse: Parse) -> None:
    fill = "q 612 0 0 306 0 400 cm /I1 Do Q\n"
    document = parse(
        pdf(
            Page(content=at(72, 700, "Readable cover page.")),
            Page(content=fill, xobjects={"I1": scan("Harbour invoice")}),
            Page(),
            Page(content=fill, xobjects={"I1": scan("Closing letter", degrees=180)}),
        )
    )
    assert [page.state for page in document.pages] == [PageState.TEXT, PageState.OCR, PageState.BLANK, PageState.OCR]
    assert [(document.block_text(block), block.page) for block in document.blocks] == [
        ("Readable cover page.", 1),
        ("Harbour invoice", 2),
        ("Closing letter", 4),
    ]
    assert document.metadata["ladder_step"] == "ocr"
    assert "page 2 read by OCR: no text layer" in document.warnings
    assert "page 4 read by OCR: no text layer; turned by 180 degrees" in document.warnings
    assert document.pages[2].reason == "the page is empty"


def test_a_scan_without_letters_has_no_content_and_says_so(parse: Parse) -> None:
    blob = gray_image(64, 64, b"\x20" * 2048 + b"\xe0" * 2048)
    document = parse(pdf(Page(content="q 612 0 0 792 0 0 cm /I1 Do Q", xobjects={"I1": blob})))
    assert not document.has_content
    assert document.pages[0].state is PageState.BLANK
    assert "page 1 without text: no text layer, and OCR found no text" in document.warnings


def test_a_page_with_nothing_but_an_ornament_is_blank_without_ocr(parse: Parse) -> None:
    blob = gray_image(64, 64, b"\x20" * 2048 + b"\xe0" * 2048)
    ornament = Page(content="q 40 0 0 62 18 170 cm /I1 Do Q", xobjects={"I1": blob})
    document = parse(pdf(Page(content=at(72, 700, "Annual report.")), ornament))
    assert document.pages[1].state is PageState.BLANK
    assert document.pages[1].reason == "only pictures too small for text are on the page"
    assert document.warnings == ("page 2 without text: only pictures too small for text are on the page",)


def test_without_time_for_ocr_the_page_is_failed_and_the_others_are_kept(parse: Parse) -> None:
    scanned = Page(content="q 612 0 0 306 0 400 cm /I1 Do Q", xobjects={"I1": scan("Harbour invoice")})
    document = parse(pdf(Page(content=at(72, 700, "Readable cover page.")), scanned), limits=ParseLimits(seconds=-1.0))
    assert [page.state for page in document.pages] == [PageState.TEXT, PageState.FAILED]
    assert document.text == "Readable cover page."
    assert any(warning.startswith("page 2 could not be read") for warning in document.warnings)


def test_a_damaged_page_keeps_its_number(parse: Parse) -> None:
    content = pdf(*(Page(content=at(72, 700, f"text {number}")) for number in (1, 2, 3)))
    document = parse(content.replace(b"/Kids[5 0 R 7 0 R 9 0 R]", b"/Kids[5 0 R 99 0 R 9 0 R]"))
    assert [(page.number, page.state) for page in document.pages] == [
        (1, PageState.TEXT),
        (2, PageState.FAILED),
        (3, PageState.TEXT),
    ]
    assert [(document.block_text(block), block.page) for block in document.blocks] == [("text 1", 1), ("text 3", 3)]


def test_a_file_with_wrong_offsets_is_repaired(parse: Parse) -> None:
    content = pdf(Page(content=at(72, 700, "Still here.")))
    assert parse(b"junk\n" + content.replace(b"xref", b"xxxx")).text == "Still here."


def test_a_file_whose_end_is_cut_off_is_repaired_with_a_warning(parse: Parse) -> None:
    content = pdf(Page(content=at(72, 700, "Still here.")), Page(content=at(72, 700, "May be lost.")))
    document = parse(content[: content.index(b"xref\n")])
    assert document.text.startswith("Still here.")
    assert "the PDF is damaged and was repaired: parts of it may be missing" in document.warnings


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        pytest.param(b"", EmptyDocumentError, "no bytes", id="empty"),
        pytest.param(b"%PDF-1.7\nnothing", CorruptDocumentError, "damaged beyond repair", id="only a header"),
        pytest.param(b"<html></html>", CorruptDocumentError, "not a PDF", id="not a PDF"),
        pytest.param(pdf(), CorruptDocumentError, "damaged", id="no pages"),
        pytest.param(
            pdf(Page(), password="harbour"), EncryptedDocumentError, "remove the password and submit", id="locked"
        ),
    ],
)
def test_unreadable_files_say_what_to_do(
    parse: Parse, content: bytes, error: type[InvalidDocumentError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        parse(content)
    assert "pdfium" not in str(caught.value).lower()


def test_a_locked_file_opens_with_its_password_only(parse: Parse) -> None:
    locked = pdf(Page(content=at(72, 700, "Behind the lock.")), password="harbour")
    assert parse(locked, password="harbour").text == "Behind the lock."
    with pytest.raises(EncryptedDocumentError, match="does not open"):
        parse(locked, password="wrong")


def test_an_empty_password_is_none(parse: Parse) -> None:
    assert parse(pdf(Page(content=at(72, 700, "Owner locked.")), password="")).text == "Owner locked."


def test_a_damaged_file_after_a_locked_one_is_not_called_encrypted(parse: Parse) -> None:
    with pytest.raises(EncryptedDocumentError):
        parse(pdf(Page(), password="harbour"))
    with pytest.raises(CorruptDocumentError):
        parse(pdf())


def test_too_many_pages_are_refused(parse: Parse) -> None:
    with pytest.raises(DocumentTooLargeError, match="3 pages, the limit is 2"):
        parse(pdf(Page(), Page(), Page()), limits=ParseLimits(max_pages=2))
