"""Damaged files of every kind here end as a document or as an error of ours, never as another exception."""

import random
from collections import Counter
from pathlib import Path

import pytest

from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import InvalidDocumentError
from rag_pipeline.parsing.registry import parse_file
from rag_pipeline_tests.parsing.office.packages import cell, paragraph, table, write_docx
from rag_pipeline_tests.parsing.office.test_pptx import BULLETS, Deck
from rag_pipeline_tests.parsing.office.test_xlsx import save, workbook

ROUNDS = 60


def docx(folder: Path) -> Path:
    body = paragraph("Scope", style="Heading1") + table(cell("a") + cell("b"), cell("c") + cell("d"))
    return write_docx(folder, body).path


def pptx(folder: Path) -> Path:
    deck = Deck()
    deck.slide(BULLETS, "Title").placeholders[1].text_frame.text = "bullet"
    return deck.save(folder).path


def xlsx(folder: Path) -> Path:
    book, page = workbook(["Item", "Price"], ["Desk", 120], ["Lamp", 0.5])
    page.merge_cells("A1:A2")
    return save(book, folder).path


def rtf(folder: Path) -> Path:
    path = folder / "a.rtf"
    path.write_bytes(
        rb"{\rtf1\ansi{\fonttbl{\f1\fcharset134 S;}}\trowd\intbl a\cell\row\pard{\f1\'ba\'cf}\u20320?\par}"
    )
    return path


def eml(folder: Path) -> Path:
    path = folder / "a.eml"
    path.write_bytes(
        b"Subject: =?utf-8?q?Hi?=\nFrom: Ada <a@b.org>\nDate: Fri, 01 Mar 2024 14:30:00 +0200\nMIME-Version: 1.0\n"
        b"Content-Type: multipart/alternative; boundary=x\n\n--x\nContent-Type: text/plain; charset=utf-8\n\nplain\n"
        b"--x\nContent-Type: text/html\n\n<p>html</p>\n--x--\n"
    )
    return path


def damaged(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return content[: chance.randrange(1, len(content))]
    changed = bytearray(content)
    for _ in range(chance.choice([1, 4, 30])):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("write", [docx, pptx, xlsx, rtf, eml], ids=lambda write: write.__name__)
def test_damaged_files_end_in_a_document_or_an_error_of_ours(tmp_path: Path, write: object) -> None:
    assert callable(write)
    path: Path = write(tmp_path)
    whole = path.read_bytes()
    chance = random.Random(7)
    outcomes: Counter[str] = Counter()
    for _ in range(ROUNDS):
        path.write_bytes(damaged(whole, chance))
        try:
            parse_file(ParseRequest(path=path, file_name=path.name))
            outcomes["read"] += 1
        except InvalidDocumentError as error:
            outcomes[error.code] += 1
    assert outcomes.total() == ROUNDS
