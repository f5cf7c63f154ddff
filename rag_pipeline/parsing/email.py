"""E-mail messages (eml): subject, who and when, the body that says most, attached messages; other attachments by name.

Attachments are listed, not read: they are documents of their own.
"""

import email
import email.policy
from collections.abc import Iterator
from datetime import datetime
from email.errors import MessageError
from email.headerregistry import DateHeader
from email.message import EmailMessage, MIMEPart
from typing import ClassVar

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument, is_blank
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, EmptyDocumentError, InvalidDocumentError
from rag_pipeline.parsing.encoding import decode, read_bytes
from rag_pipeline.parsing.html import add_html
from rag_pipeline.parsing.office.drawing import add_image
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.text import add_paragraphs

MAX_FORWARD_DEPTH = 5
"""Messages attached to messages attached to messages: deeper ones are only listed."""
STUB_RATIO = 0.5
"""A plain body shorter than this share of the HTML body is a stub ("view this mail in a browser")."""

_SHOWN_HEADERS = ("From", "To", "Cc", "Date")
_KNOWN_HEADERS = frozenset({"from", "to", "subject", "date", "message-id", "received", "mime-version", "return-path"})


class EmailParser(Parser):
    """eml files as mail programs export them."""

    name: ClassVar[str] = "email"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Errors as `Parser`."""
        content = read_bytes(request.path, limits=request.limits)
        if not content.strip():
            raise EmptyDocumentError(f"{request.file_name} is empty; export the message again")
        try:
            message = email.message_from_bytes(content.lstrip(), policy=email.policy.default)
            if not _KNOWN_HEADERS.intersection(name.lower() for name in message):
                raise CorruptDocumentError(
                    f"{request.file_name} has no mail headers; export the message as .eml, or rename the file to .txt"
                )
            builder = DocumentBuilder(parser=self.name, parser_version=self.version)
            _Reader(builder).message(message, depth=1)
        except (MessageError, RecursionError) as error:
            raise CorruptDocumentError(f"{request.file_name} is damaged; export the message again") from error
        if not builder.block_count:
            builder.warn("the message holds no text")
        return builder.build()


class _Reader:
    def __init__(self, builder: DocumentBuilder) -> None:
        self._builder = builder
        self._attachments: list[dict[str, object]] = []

    def message(self, message: EmailMessage, *, depth: int) -> None:
        """Add one message; `depth` is 1 for the file's own, more for those attached to it."""
        headers = {name: header_text(message, name) for name in ("Subject", *_SHOWN_HEADERS)}
        headers["Date"] = _iso_date(message) or headers["Date"]
        self._builder.add_block(BlockType.HEADING, headers["Subject"], level=min(depth, 6))
        shown = "\n".join(f"{name}: {headers[name]}" for name in _SHOWN_HEADERS if headers[name])
        self._builder.add_block(BlockType.PARAGRAPH, shown, metadata={"role": "headers"})
        self._body(message)
        if depth == 1:
            self._metadata(message, headers)
        for part in attached_parts(message):
            self._attachment(part, depth)
        if depth == 1 and self._attachments:
            self._builder.metadata["attachments"] = self._attachments
            lines = [f"{item['name']} ({item['media_type']})" for item in self._attachments]
            self._builder.add_block(
                BlockType.PARAGRAPH, "Attachments: " + ", ".join(lines), metadata={"role": "attachments"}
            )
            self._builder.warn("attachments are listed, not read; submit them as documents of their own")

    def _metadata(self, message: EmailMessage, headers: dict[str, str]) -> None:
        facts = {
            "title": headers["Subject"],
            "author": headers["From"],
            "created": headers["Date"],
            "message_id": header_text(message, "Message-ID"),
            "in_reply_to": header_text(message, "In-Reply-To"),
        }
        self._builder.metadata.update({name: value for name, value in facts.items() if value})

    def _body(self, message: EmailMessage) -> None:
        plain = message.get_body(("plain",))
        html = message.get_body(("html",))
        plain_text = self._text(plain) if plain is not None else ""
        html_source = self._text(html) if html is not None else ""
        if html_source and len(plain_text.split()) <= STUB_RATIO * len(_html_words(html_source)):
            add_html(self._builder, html_source)
        elif not is_blank(plain_text):
            self._builder.add_gap("\n\n" if self._builder.length else "")
            add_paragraphs(self._builder, plain_text.strip())

    def _text(self, part: MIMEPart) -> str:
        """Decoded text of a part; "" with a warning when no charset fits."""
        payload = part.get_payload(decode=True)
        if not isinstance(payload, bytes):
            return ""
        try:
            decoded = decode(payload, declared=part.get_content_charset())
        except InvalidDocumentError:
            self._builder.warn("a part of the message has an unreadable charset and was left out")
            return ""
        for warning in decoded.warnings:
            self._builder.warn(warning)
        return decoded.text.replace("\r\n", "\n")

    def _attachment(self, part: EmailMessage, depth: int) -> None:
        media_type = part.get_content_type()
        if media_type == "message/rfc822" and depth < MAX_FORWARD_DEPTH:
            inner = part.get_payload(0) if part.is_multipart() else None
            if isinstance(inner, EmailMessage):
                self.message(inner, depth=depth + 1)
                return
        payload = part.get_payload(decode=True)
        content = payload if isinstance(payload, bytes) else b""
        name = part.get_filename()
        if media_type.startswith("image/") and content:
            add_image(self._builder, content, description=name or "")
        if name or part.get_content_disposition() == "attachment":
            self._attachments.append({"name": name or "unnamed", "media_type": media_type, "bytes": len(content)})


def attached_parts(message: EmailMessage) -> Iterator[EmailMessage]:
    """Parts that are not the body, depth first, without looking into attached messages."""
    bodies = {id(body) for kind in ("plain", "html") if (body := message.get_body((kind,))) is not None}
    pending = list(reversed(_parts(message)))
    while pending:
        part = pending.pop()
        if part.get_content_maintype() == "multipart":
            pending.extend(reversed(_parts(part)))
        elif id(part) not in bodies:
            yield part


def _parts(message: EmailMessage) -> list[EmailMessage]:
    payload = message.get_payload()
    return [part for part in payload if isinstance(part, EmailMessage)] if isinstance(payload, list) else []


def header_text(message: EmailMessage, name: str) -> str:
    """A header decoded and on one line; as it stands in the file when it breaks the grammar; "" when it is missing."""
    try:
        return " ".join(str(message.get(name, "")).split())
    except (ValueError, IndexError, AttributeError, TypeError, LookupError):
        # The standard library's header grammar fails in many ways on headers that programs really write.
        raw = (value for key, value in message.raw_items() if key.lower() == name.lower())
        return " ".join(str(next(raw, "")).split())


def _iso_date(message: EmailMessage) -> str | None:
    """The date as ISO text with seconds and the sender's offset."""
    try:
        header = message.get("Date")
    except (ValueError, IndexError, AttributeError, TypeError, LookupError):
        return None
    moment = header.datetime if isinstance(header, DateHeader) else None
    return moment.isoformat(sep=" ", timespec="seconds") if isinstance(moment, datetime) else None


def _html_words(source: str) -> list[str]:
    probe = DocumentBuilder(parser="", parser_version="")
    add_html(probe, source)
    return probe.build().text.split()
