"""Small files for tests, good and bad, made here so that nothing has to be shipped."""

import hashlib
import io
from collections.abc import Sequence

import docx as python_docx
import pypdfium2 as pdfium

ODD_NAMES = (
    "O'Brien report.txt",
    'say "hi".txt',
    "back\\slash\\t.txt",
    "ends with backslash\\",
    "evil.txt' or '1'=='1",
    'x" or doc_id != "',
    "100%_like.txt",
    "{tpl} in [a].txt",
    'a\\"b.txt',
    "名称'引号.txt",
    "semi;colon--.txt",
)
"""File names with quotes, backslashes and what means something in SQL, in patterns and in templates."""


def pdf(pages: Sequence[str]) -> bytes:
    """A PDF with one line of Helvetica text per page."""
    objects: list[bytes] = []
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects.append(b"<< /Type /Catalog /Pages 2 0 R >>")
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode())
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, text in enumerate(pages):
        escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
        stream = f"BT /F1 12 Tf 72 720 Td ({escaped}) Tj ET".encode()
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    return _pdf_file(objects)


def _pdf_file(objects: Sequence[bytes], *, trailer: bytes = b"") -> bytes:
    content = bytearray(b"%PDF-1.7\n")
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(content)
    content += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    content += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    content += b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, trailer, start)
    return bytes(content)


def corrupt_pdf() -> bytes:
    """Begins like a PDF and holds nothing that could be repaired."""
    return b"%PDF-1.7\n" + bytes(range(256)) * 20


def docx(paragraphs: Sequence[str]) -> bytes:
    """A Word file."""
    document = python_docx.Document()
    for text in paragraphs:
        document.add_paragraph(text)
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def truncated_docx() -> bytes:
    """The first half of a Word file: its central directory is gone."""
    whole = docx(["some text"] * 50)
    return whole[: len(whole) // 2]


def page_count(content: bytes) -> int:
    """Pages as PDFium counts them."""
    with pdfium.PdfDocument(content) as document:
        return len(document)


def encrypted_pdf(password: str) -> bytes:
    """A one-page PDF that opens only with the password (RC4, 40 bit: PDF 1.7, 7.6.3, algorithms 2 to 4)."""
    identifier = b"0123456789abcdef"
    permissions = (-4).to_bytes(4, "little", signed=True)
    padded = (password.encode() + _PASSWORD_PADDING)[:32]
    owner_entry = _rc4(hashlib.md5(padded).digest()[:5], padded)
    key = hashlib.md5(padded + owner_entry + permissions + identifier).digest()[:5]
    stream = _rc4(_object_key(key, 5), b"BT /F1 12 Tf 72 720 Td (a secret line) Tj ET")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R "
        b"/Resources << /Font << /F1 3 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Filter /Standard /V 1 /R 2 /O <%s> /U <%s> /P -4 >>"
        % (owner_entry.hex().encode(), _rc4(key, _PASSWORD_PADDING).hex().encode()),
    ]
    trailer = b"/Encrypt 6 0 R /ID [<%s> <%s>]" % (identifier.hex().encode(), identifier.hex().encode())
    return _pdf_file(objects, trailer=trailer)


def _object_key(key: bytes, number: int) -> bytes:
    return hashlib.md5(key + number.to_bytes(3, "little") + b"\0\0").digest()[:10]


def _rc4(key: bytes, data: bytes) -> bytes:
    state = list(range(256))
    j = 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    i = j = 0
    out = bytearray()
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)


_PASSWORD_PADDING = bytes.fromhex("28bf4e5e4e758a4164004e56fffa01082e2e00b6d0683e802f0ca9fe6453697a")
