"""The vocabulary of multilingual-e5-small as a SentencePiece model.

SentencePiece needs 55 MB for the 250,000 pieces where `tokenizers` needs 295, and a sixth of its time per text. The
model is a protocol buffer (`sentencepiece_model.proto`); its generated Python code pins a release of `protobuf`, so the
few fields are written here.
"""

import json
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from rag_pipeline.adapters.embedders.e5_weights import Sizes, Vocabulary
from rag_pipeline.core.parsed_document import clean_text

MODEL_FILE = "sentencepiece.model"
DESCRIPTION_FILE = "tokenizer.json"

_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_UNIGRAM = 1
_LENGTH_DELIMITED, _FIXED_32 = 2, 5
_SPACES = re.compile(" {2,}")


class E5Tokenizer:
    """Texts to token ids, in windows of what the model reads at once. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        """Load what `write_tokenizer` wrote. Raises `ImportError` without SentencePiece, `OSError` without files."""
        import sentencepiece

        self._processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / MODEL_FILE))
        described = json.loads((folder / DESCRIPTION_FILE).read_text("utf-8"))
        self._characters = str.maketrans(described["characters"])
        self._begin, self._end = described["begin"], described["end"]
        self._room = described["positions"] - 2

    def windows(self, texts: Sequence[str]) -> list[list[list[int]]]:
        """For each text at least one window: the special tokens around up to 510 others."""
        prepared = [_SPACES.sub(" ", clean_text(text).translate(self._characters)) for text in texts]
        return [
            [
                [self._begin, *ids[start : start + self._room], self._end]
                for start in range(0, max(len(ids), 1), self._room)
            ]
            for ids in self._processor.encode(prepared)
        ]


def write_tokenizer(vocabulary: Vocabulary, sizes: Sizes, folder: Path) -> None:
    """Write the files that `E5Tokenizer` loads."""
    (folder / MODEL_FILE).write_bytes(_model(vocabulary))
    description = {
        "begin": vocabulary.begin,
        "end": vocabulary.end,
        "positions": sizes.positions,
        "characters": {chr(character): text for character, text in vocabulary.character_map.items()},
    }
    (folder / DESCRIPTION_FILE).write_text(json.dumps(description), "utf-8")


def _model(vocabulary: Vocabulary) -> bytes:
    controls = {vocabulary.begin, vocabulary.end, vocabulary.padding}
    written = []
    for number, (piece, score) in enumerate(zip(vocabulary.pieces, vocabulary.scores, strict=True)):
        kind = _UNKNOWN if number == vocabulary.unknown else _CONTROL if number in controls else _NORMAL
        # Pieces may not be empty; this one stands for itself and is found in no text.
        text = (piece or f"<piece {number}>").encode()
        score_field = _number(2 << 3 | _FIXED_32) + struct.pack("<f", score)
        written.append(_message(1, _message(1, text) + score_field + _integer(3, kind)))
    trainer = _integer(3, _UNIGRAM)
    for field, token in (
        (40, vocabulary.unknown),
        (41, vocabulary.begin),
        (42, vocabulary.end),
        (43, vocabulary.padding),
    ):
        trainer += _integer(field, token)
    keep_spaces = _integer(3, 1) + _integer(4, 0) + _integer(5, 1)
    return b"".join([*written, _message(2, trainer), _message(3, _message(1, b"identity") + keep_spaces)])


def _number(value: int) -> bytes:
    """A base-128 varint."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _integer(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _message(field: int, content: bytes) -> bytes:
    return _number(field << 3 | _LENGTH_DELIMITED) + _number(len(content)) + content
