from email.message import EmailMessage
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from rag_pipeline.core.parsed_document import BlockType, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, EmptyDocumentError
from rag_pipeline.parsing.email import EmailParser


def parse(folder: Path, content: bytes | EmailMessage) -> ParsedDocument:
    path = folder / "mail.eml"
    path.write_bytes(content if isinstance(content, bytes) else bytes(content))
    return EmailParser().parse(ParseRequest(path=path, file_name="mail.eml"))


def message(body: str = "The invoice is attached.", *, subject: str = "Invoice 7") -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = subject
    mail["From"] = "Ada Müller <ada@example.org>"
    mail["To"] = "Bo <bo@example.org>"
    mail["Date"] = "Fri, 01 Mar 2024 14:30:00 +0200"
    mail["Message-ID"] = "<7@example.org>"
    mail.set_content(body)
    return mail


def texts(document: ParsedDocument) -> list[str]:
    return [document.block_text(block) for block in document.blocks]


def test_subject_headers_and_body(tmp_path: Path) -> None:
    document = parse(tmp_path, message("First paragraph.\n\nSecond one.\n"))
    assert texts(document) == [
        "Invoice 7",
        "From: Ada Müller <ada@example.org>\nTo: Bo <bo@example.org>\nDate: 2024-03-01 14:30:00+02:00",
        "First paragraph.",
        "Second one.",
    ]
    assert document.blocks[0].type is BlockType.HEADING
    assert document.blocks[2].heading_path == ("Invoice 7",)
    assert document.metadata["title"] == "Invoice 7"
    assert document.metadata["message_id"] == "<7@example.org>"


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        pytest.param("All the words of the long letter, the same in plain.", "the same in plain", id="full-plain-body"),
        pytest.param("View in browser", "All the words", id="stub"),
        pytest.param(" \n", "All the words", id="blank-plain-body"),
    ],
)
def test_the_body_that_says_most_is_taken(tmp_path: Path, plain: str, expected: str) -> None:
    mail = message(plain)
    html = "<html><head><title>x</title></head><body><p>All the words of the long letter, in HTML.</p></body></html>"
    mail.add_alternative(html, subtype="html")
    document = parse(tmp_path, mail)
    assert expected in texts(document)[2]
    assert document.text.count("letter") == 1
    assert document.metadata["title"] == "Invoice 7"


def test_attachments_are_listed_and_not_read(tmp_path: Path) -> None:
    mail = message()
    mail.add_attachment(b"secret numbers", maintype="application", subtype="pdf", filename="Rechnung März.pdf")
    document = parse(tmp_path, mail)
    assert document.metadata["attachments"] == [
        {"name": "Rechnung März.pdf", "media_type": "application/pdf", "bytes": 14}
    ]
    assert texts(document)[-1] == "Attachments: Rechnung März.pdf (application/pdf)"
    assert "secret" not in document.text
    assert "attachments are listed, not read; submit them as documents of their own" in document.warnings


def test_pictures_are_kept(tmp_path: Path) -> None:
    picture = BytesIO()
    Image.new("RGB", (5, 4)).save(picture, "PNG")
    mail = message()
    mail.add_attachment(picture.getvalue(), maintype="image", subtype="png", filename="bridge.png")
    (image,) = parse(tmp_path, mail).images
    assert (image.width, image.height, image.description) == (5, 4, "bridge.png")


def test_an_attached_message_is_read_below_its_own_subject(tmp_path: Path) -> None:
    mail = message("See below.")
    mail.add_attachment(message("The original text.", subject="Older mail"))
    document = parse(tmp_path, mail)
    (block,) = [block for block in document.blocks if document.block_text(block) == "The original text."]
    assert block.heading_path == ("Invoice 7", "Older mail")


def test_messages_nested_without_end_are_not_followed(tmp_path: Path) -> None:
    mail = message("innermost")
    for level in range(30):
        outer = message(f"level {level}")
        outer.add_attachment(mail)
        mail = outer
    document = parse(tmp_path, mail)
    assert "level 29" in document.text
    assert "innermost" not in document.text


@pytest.mark.parametrize(
    ("charset", "encoded"),
    [
        pytest.param("gb2312", "合同金额为一百万元，付款期限为三十天。".encode("gb18030"), id="chinese"),
        pytest.param("no-such-charset", "合同金额为一百万元，付款期限为三十天。".encode(), id="unknown-charset"),
    ],
)
def test_bodies_in_other_charsets(tmp_path: Path, charset: str, encoded: bytes) -> None:
    head = f"Subject: =?utf-8?b?5ZCI5ZCM?=\nFrom: a@example.org\nContent-Type: text/plain; charset={charset}\n\n"
    document = parse(tmp_path, head.encode() + encoded)
    assert texts(document)[0] == "合同"
    assert texts(document)[-1] == "合同金额为一百万元，付款期限为三十天。"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"Date: not a date", id="date"),
        pytest.param(b"To: <>, ,;: [", id="addresses"),
        pytest.param(b"Content-Type: ///;;charset", id="content-type"),
        pytest.param(b"From: =?x?q?=??=", id="encoded-word"),
        pytest.param(b"Message-ID: <", id="message-id"),
    ],
)
def test_malformed_headers_do_not_lose_the_message(tmp_path: Path, line: bytes) -> None:
    document = parse(tmp_path, b"Subject: Hello\nFrom: a@example.org\n" + line + b"\n\nThe body.\n")
    assert "The body." in document.text


def test_a_text_that_is_no_mail_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptDocumentError, match="no mail headers"):
        parse(tmp_path, b"Just a note.\n\nNothing else.\n")


def test_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(EmptyDocumentError):
        parse(tmp_path, b"\n")
