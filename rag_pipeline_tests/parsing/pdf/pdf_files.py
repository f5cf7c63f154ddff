"""Writes small PDF files by hand, so that each test shows exactly what the parser is given."""

import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
HELVETICA = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"
BOLD = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica-Bold/Encoding/WinAnsiEncoding>>"
TIMES = "<</Type/Font/Subtype/Type1/BaseFont/Times-Roman/Encoding/WinAnsiEncoding>>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a file."""

    content: str = ""
    extra: str = ""
    """More entries of the page dictionary, such as `/Rotate 90`."""
    annotations: Sequence[str] = ()
    xobjects: Mapping[str, bytes] = field(default_factory=dict)
    """Complete stream objects (dictionary and stream) by name."""


def at(x: float, y: float, text: str, *, font: str = "F1", size: float = 12) -> str:
    """A line of text; the origin of the page is at the bottom left."""
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"BT /{font} {size} Tf {x} {y} Td ({escaped}) Tj ET\n"


def lines(x: float, y: float, texts: Sequence[str], *, font: str = "F1", size: float = 12, step: float = 14) -> str:
    """Lines below each other."""
    return "".join(at(x, y - number * step, text, font=font, size=size) for number, text in enumerate(texts))


def gray_image(width: int, height: int, pixels: bytes) -> bytes:
    """An image XObject."""
    packed = zlib.compress(pixels)
    head = (
        f"<</Type/XObject/Subtype/Image/Width {width}/Height {height}/ColorSpace/DeviceGray/BitsPerComponent 8"
        f"/Filter/FlateDecode/Length {len(packed)}>>"
    )
    return head.encode() + b"\nstream\n" + packed + b"\nendstream"


def pdf(
    *pages: Page,
    catalog: str = "",
    info: str = "",
    fonts: Mapping[str, str] | None = None,
    objects: Sequence[str] = (),
    password: str | None = None,
) -> bytes:
    """A file of these pages.

    Args:
        pages: in order.
        catalog: more entries of the catalog.
        info: entries of the information dictionary.
        fonts: by name; F1 is Helvetica, B1 Helvetica-Bold, T1 Times.
        objects: further objects; the first is number 4.
        password: encrypts with it (RC4, 40 bit); "" means an empty user password.
    """
    bodies: dict[int, bytes] = {3: f"<<{info}>>".encode()}
    for offset, body in enumerate(objects):
        bodies[4 + offset] = body.encode()

    def add(body: bytes) -> int:
        number = max(bodies) + 1
        bodies[number] = body
        return number

    font_entries = {"F1": HELVETICA, "B1": BOLD, "T1": TIMES, **(fonts or {})}
    font_list = " ".join(f"/{name} {body}" for name, body in font_entries.items())
    kids = []
    for page in pages:
        content = page.content.encode("latin-1")
        stream = add(b"<</Length %d>>\nstream\n%s\nendstream" % (len(content), content))
        drawn = " ".join(f"/{name} {add(body)} 0 R" for name, body in page.xobjects.items())
        annotations = " ".join(f"{add(body.encode('latin-1'))} 0 R" for body in page.annotations)
        kids.append(
            add(
                f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents {stream} 0 R/Annots[{annotations}]"
                f"/Resources<</Font<<{font_list}>>/XObject<<{drawn}>>>>{page.extra}>>".encode()
            )
        )
    bodies[1] = f"<</Type/Catalog/Pages 2 0 R{catalog}>>".encode()
    bodies[2] = f"<</Type/Pages/Kids[{' '.join(f'{kid} 0 R' for kid in kids)}]/Count {len(kids)}>>".encode()
    trailer = b"/Root 1 0 R/Info 3 0 R"
    if password is not None:
        trailer += _encrypt(bodies, password, keep=3)
    return _write(bodies, trailer)


def _write(bodies: Mapping[int, bytes], trailer: bytes) -> bytes:
    out = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    offsets = {}
    for number in sorted(bodies):
        offsets[number] = len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, bodies[number])
    start = len(out)
    size = max(bodies) + 1
    out += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        out += b"%010d 00000 n \n" % offsets[number]
    out += b"trailer\n<</Size %d%s>>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, start)
    return bytes(out)


def _encrypt(bodies: dict[int, bytes], password: str, *, keep: int) -> bytes:
    """Encrypt the streams in place; strings are left alone, so use none in encrypted files."""
    permissions = -4
    identifier = hashlib.md5(b"test").digest()
    user = (password.encode("latin-1") + PADDING)[:32]
    owner = _rc4(hashlib.md5(PADDING).digest()[:5], user)
    key = hashlib.md5(user + owner + struct.pack("<i", permissions) + identifier).digest()[:5]
    for number, body in bodies.items():
        if number != keep and b"\nstream\n" in body:
            head, _, rest = body.partition(b"\nstream\n")
            object_key = hashlib.md5(key + struct.pack("<I", number)[:3] + b"\0\0").digest()[:10]
            sealed = _rc4(object_key, rest.removesuffix(b"\nendstream"))
            bodies[number] = head + b"\nstream\n" + sealed + b"\nendstream"
    number = max(bodies) + 1
    bodies[number] = b"<</Filter/Standard/V 1/R 2/O<%s>/U<%s>/P %d>>" % (
        owner.hex().encode(),
        _rc4(key, PADDING).hex().encode(),
        permissions,
    )
    return b"/Encrypt %d 0 R/ID[<%s><%s>]" % (number, identifier.hex().encode(), identifier.hex().encode())


def _rc4(key: bytes, data: bytes) -> bytes:
    state = list(range(256))
    j = 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out = bytearray()
    i = j = 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)
