import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from PIL import Image

from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.adapters.postgres.schema import chunks, documents, images
from rag_pipeline.core.parsed_document import BoundingBox
from rag_pipeline.core.ports import ParseLimits
from rag_pipeline.errors import CorruptDocumentError, ParserCrashedError, ParseTimeoutError, ResourceNotFoundError
from rag_pipeline.parsing import rendering
from rag_pipeline.parsing.rendering import OUTLINE_COLOR, RenderRequest, render
from rag_pipeline.query import evidence
from rag_pipeline.query.client import RagClient
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.results import RetrievalResult
from rag_pipeline.settings import Settings
from rag_pipeline_tests.parsing.pdf.pdf_files import Page, at, gray_image, pdf
from rag_pipeline_tests.query.library import LIBRARY, Library
from rag_pipeline_tests.stages.runner import KB, Runner, running

LIMITS = ParseLimits(seconds=30, memory_bytes=1_000_000_000)


@pytest.fixture
def client(library: Library) -> Iterator[RagClient]:
    with library.client() as client:
        yield client


def opened(png: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return image.convert("RGB")


def outline(image: Image.Image) -> tuple[int, int, int, int] | None:
    """Bounding box of what is drawn in the outline's colour."""
    mask = (np.asarray(image) == OUTLINE_COLOR).all(axis=2)
    return Image.fromarray(mask).getbbox()


def hit(client: RagClient, library: Library, name: str, question: str) -> RetrievalResult:
    options = RetrievalOptions(document_ids=library.ids(name), mode="bm25", top_k=1)
    return client.retrieve(LIBRARY, question, options=options).results[0]


def test_the_page_of_a_hit_with_its_blocks_outlined(client: RagClient, library: Library) -> None:
    image = opened(client.evidence(hit(client, library, "pump.pdf", "deposit")))
    assert max(image.size) == rendering.LONGEST_SIDE
    box = outline(image)
    assert box is not None
    left, top, right, bottom = box
    assert 0 < left < right < image.width
    assert bottom - top < image.height / 10, "one line of text"


def test_a_verified_quotation_leads_to_its_own_page(client: RagClient, library: Library) -> None:
    (citation,) = client.ask(
        LIBRARY, "wiper blade", options=RetrievalOptions(document_ids=library.ids("pump.pdf"), top_k=1, expand=True)
    ).citations
    assert (citation.page, citation.page_end) == (1, 3)
    from rag_pipeline.core.quotes import Quote

    box = BoundingBox(left=72, top=680, right=300, bottom=700)
    quoted = replace(citation, quotes=(Quote(text="q", number=1, is_verified=True, page=3, bbox=box),))
    found = outline(opened(client.evidence(quoted)))
    assert found is not None
    assert found[1] > rendering.LONGEST_SIDE * 0.8, "the text of page 3 stands at the foot of the page"


def test_text_formats_have_nothing_to_draw(client: RagClient, library: Library) -> None:
    with pytest.raises(ResourceNotFoundError, match="no page or image to show"):
        client.evidence(hit(client, library, "lease.md", "deposit"))


@pytest.mark.parametrize("evidence_id", ["", "unknown", "a\0b", "' or true--", "0" * 32])
def test_an_unknown_id(client: RagClient, evidence_id: str) -> None:
    with pytest.raises(ResourceNotFoundError):
        client.evidence(evidence_id)


@pytest.fixture
def runner(settings: Settings) -> Iterator[Runner]:
    with running(settings) as found:
        yield found


PICTURE = gray_image(64, 64, bytes(range(64)) * 64)
PICTURED = pdf(
    Page(
        content=at(72, 700, "A picture of the pump follows below this line of text.")
        + "q 100 0 0 100 72 500 cm /P1 Do Q\n",
        xobjects={"P1": PICTURE},
    )
)


def stored_image(runner: Runner) -> str:
    with runner.services.facts.engine.connect() as connection:
        return str(connection.execute(sa.select(images.c.id)).scalar_one())


def test_a_stored_image_until_its_document_is_deleted_or_replaced(runner: Runner) -> None:
    client = runner.system.client
    document = client.submit(KB, PICTURED, filename="a.pdf", metadata={"allowed_to": ["alice"]})
    assert runner.run(document).ready == 1
    image_id = stored_image(runner)
    result = client.search(KB, "picture of the pump", top_k=1)[0]
    assert opened(client.evidence(image_id)).size == (64, 64)
    assert client.evidence(image_id, principals=["alice"]) == client.evidence(image_id, kb=KB)
    for subject in (image_id, result, result.chunk_id):
        with pytest.raises(ResourceNotFoundError):
            client.evidence(subject, principals=["bob"])
        with pytest.raises(ResourceNotFoundError):
            client.evidence(subject, principals=[])

    client.submit(KB, PICTURED + b"%", filename="a.pdf")
    assert opened(client.evidence(image_id)).size == (64, 64), "the old version answers until the new one is ready"
    assert runner.run(client.document(document.id)).ready == 1
    for subject in (image_id, result):
        with pytest.raises(ResourceNotFoundError):
            client.evidence(subject)

    again = client.search(KB, "picture of the pump", top_k=1)[0]
    assert client.evidence(again).startswith(b"\x89PNG")
    client.delete(document.id)
    with pytest.raises(ResourceNotFoundError):
        client.evidence(again)


def test_the_image_that_a_locator_names(runner: Runner) -> None:
    """Formats without pages that can be drawn show the image of the passage."""
    client = runner.system.client
    document = client.submit(KB, PICTURED, filename="a.pdf")
    assert runner.run(document).ready == 1
    with runner.services.facts.engine.begin() as connection:
        connection.execute(sa.text("UPDATE document_versions SET object_key = 'original.docx'"))
        connection.execute(sa.update(chunks).values(page=None, locator={"image": "0"}))
    result = client.search(KB, "picture of the pump", top_k=1)[0]
    assert opened(client.evidence(result)).size == (64, 64)


def test_a_process_that_dies_or_hangs_is_replaced(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    client = runner.system.client
    document = client.submit(KB, PICTURED, filename="a.pdf")
    assert runner.run(document).ready == 1
    image_id = stored_image(runner)
    monkeypatch.setattr(rendering, "render", crash)
    with pytest.raises(ParserCrashedError):
        client.evidence(image_id)
    monkeypatch.setattr(rendering, "render", hang)
    monkeypatch.setattr(evidence, "RENDER_LIMITS", replace(LIMITS, seconds=1.0))
    with pytest.raises(ParseTimeoutError):
        client.evidence(image_id)
    monkeypatch.undo()
    assert client.evidence(image_id).startswith(b"\x89PNG")


def crash(_: RenderRequest) -> bytes:
    """Dies as native code does."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)
    return b""


def hang(_: RenderRequest) -> bytes:
    """Never comes back."""
    import time

    time.sleep(600)
    return b""


def test_an_original_that_is_gone(runner: Runner) -> None:
    client = runner.system.client
    document = client.submit(KB, PICTURED, filename="a.pdf")
    assert runner.run(document).ready == 1
    result = client.search(KB, "picture of the pump", top_k=1)[0]
    objects = MinioObjectStore.from_settings(runner.services.settings)
    objects.delete([info.key for info in objects.list("") if "/source" in info.key])
    with pytest.raises(ResourceNotFoundError):
        client.evidence(result)


def request(path: Path, content: bytes, **changes: object) -> RenderRequest:
    path.write_bytes(content)
    return replace(RenderRequest(path=path, limits=LIMITS), **changes)  # type: ignore[arg-type]


def image_bytes(size: tuple[int, int], form: str = "PNG", color: str = "white") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, form)
    return buffer.getvalue()


def test_boxes_of_an_image_are_scaled_from_points(tmp_path: Path) -> None:
    box = BoundingBox(left=10, top=20, right=60, bottom=40)
    drawn = request(tmp_path / "a", image_bytes((800, 400), "JPEG"), boxes=(box,), page_size=(200.0, 100.0))
    margin = rendering.OUTLINE_MARGIN
    assert outline(opened(render(drawn))) == (40 - margin, 80 - margin, 240 + margin + 1, 160 + margin + 1)
    turned = replace(drawn, page_size=(100.0, 200.0))
    assert outline(opened(render(turned))) is None
    assert outline(opened(render(replace(drawn, page_size=None)))) is None


def test_large_pictures_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = request(tmp_path / "a", image_bytes((4_000, 100)))
    assert opened(render(big)).size == (rendering.LONGEST_SIDE, 40)
    noise = np.random.default_rng(1).integers(0, 255, (1_000, 1_000, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    monkeypatch.setattr(rendering, "MOST_BYTES", 700_000)
    assert len(render(request(tmp_path / "b", buffer.getvalue()))) <= 700_000


def test_transparent_parts_are_white(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGBA", (10, 10), (0, 0, 0, 0)).save(buffer, "PNG")
    assert opened(render(request(tmp_path / "a", buffer.getvalue()))).getpixel((5, 5)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("content", "page", "error"),
    [
        (b"no image", 1, CorruptDocumentError),
        (b"%PDF-1.4 damaged", 1, CorruptDocumentError),
        (image_bytes((10, 10))[:40], 1, CorruptDocumentError),
        (PICTURED, 2, ResourceNotFoundError),
        (PICTURED, 0, ResourceNotFoundError),
        (image_bytes((10, 10)), 2, ResourceNotFoundError),
    ],
    ids=["text", "damaged PDF", "damaged PNG", "page 2 of 1", "page 0", "frame 2 of 1"],
)
def test_what_cannot_be_drawn(tmp_path: Path, content: bytes, page: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        render(request(tmp_path / "a", content, page=page))


def test_documents_table_is_untouched_by_looking(client: RagClient, library: Library) -> None:
    def states() -> list[object]:
        with library.runner.services.facts.engine.connect() as connection:
            return list(connection.execute(sa.select(documents).order_by(documents.c.id)))

    before = states()
    client.evidence(hit(client, library, "pump.pdf", "deposit"))
    assert states() == before
