"""Reads text in images: PP-OCR models (Chinese and English) that are bundled with rapidocr, on ONNX Runtime.

Nothing is downloaded. The models (30 MB) are loaded with the first image and stay for the life of the process.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
"""Shape (height, width, 3), channels blue, green, red."""

MAX_SIDE = 4000
"""Longer images are scaled down by the engine, pixels; render pages below this."""
_DETECTION_SIDE = 1280
"""Longest side of the image in which lines are looked for first, pixels."""
_DEEP_SIDE = 1800
"""The same for a deep read: 0.7 GB of memory; the whole of a page at 300 DPI would take over 2 GB."""
_FINE_PRINT = 11
"""Median height of lines, pixels, below which lines are looked for in the whole image again."""
_SURE = 0.85
"""Mean confidence from which text counts as upright."""
_MIN_SCORE = 0.5
_SAMPLES = 6
"""Lines that are read both ways to find out how a page is turned."""
_BLANK_CONTRAST = 24
"""Grey levels between the darkest and the lightest part of a page without anything on it."""
_MIN_SIDE = 8
_THINNEST = 0.4
"""Shorter side to longer side: the detection enlarges an image until its shorter side has 736 pixels (rapidocr's
`limit_side_len`), so a strip of 2,400 by 140 pixels became one of 12,600 by 736 and took 1.5 GB."""


class OcrLine(NamedTuple):
    """One line of text; pixels of the turned image, origin at the top left."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    score: float
    """Confidence, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OcrResult:
    """What was found in one image."""

    lines: tuple[OcrLine, ...]
    turned: int
    """Degrees clockwise (0, 90, 180 or 270) by which the image had to be turned for the text to stand upright."""

    @property
    def line_height(self) -> float:
        """Median height of the lines in pixels, 0 without lines: below about 16 a larger image reads better."""
        return float(np.median([line.bottom - line.top for line in self.lines])) if self.lines else 0.0


class _Orientation(NamedTuple):
    """How an image must be turned, and the lines that were read to find out."""

    turned: int
    """Degrees clockwise."""
    read: Mapping[int, tuple[str, float]]
    """Text and confidence by the number of the line; empty unless the image stands upright already."""


class OcrEngine:
    """Text detection and recognition; one engine per process."""

    def __init__(self, *, threads: int = 1) -> None:
        """Prepare an engine; nothing is loaded yet.

        Args:
            threads: that read lines of an image side by side; 1 where as many parser processes run as there are cores.
                Threads inside the models instead wait for each other by spinning: on two busy cores they took longer
                than one thread, and half as much CPU again.
        """
        self._threads = threads
        self._models: Any = None

    def read(self, image: Image, *, is_deep: bool = False) -> OcrResult:
        """Read one image, turning it when the text does not stand upright.

        Args:
            image: to read.
            is_deep: look for lines in twice as many pixels, for images in which none were found.
        """
        if min(image.shape[:2]) < _MIN_SIDE or _is_blank(image):
            return OcrResult(lines=(), turned=0)
        boxes = self._detect(image, is_deep=is_deep)
        if not len(boxes):
            return OcrResult(lines=(), turned=0)
        turned, read = self._orientation(image, boxes)
        if turned:
            image = _turned(image, turned)
            boxes = self._detect(image, is_deep=is_deep)
            if not len(boxes):
                return OcrResult(lines=(), turned=0)
        rest = [index for index in range(len(boxes)) if index not in read]
        found = {**read, **dict(zip(rest, self._recognise([_crop(image, boxes[i]) for i in rest]), strict=True))}
        lines = tuple(
            _line(box, text.strip(), score)
            for box, (text, score) in ((box, found[index]) for index, box in enumerate(boxes))
            if score >= _MIN_SCORE and text.strip()
        )
        return OcrResult(lines=lines, turned=turned)

    def _detect(self, image: Image, *, is_deep: bool) -> npt.NDArray[np.float32]:
        """Corners of the lines, shape (count, 4, 2): top left, top right, bottom right, bottom left.

        Time and memory of the detection follow the pixels, and it needs fewer of them than the recognition does: it
        gets a smaller image unless the text turns out to be fine print.
        """
        import cv2

        scale = min((_DEEP_SIDE if is_deep else _DETECTION_SIDE) / max(image.shape[:2]), 1.0)
        if scale == 1.0:
            return self._detect_at_size(image)
        small = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        boxes = self._detect_at_size(np.asarray(small, np.uint8))
        heights = [min(_size(box)) for box in boxes]
        if heights and not is_deep and np.median(heights) < _FINE_PRINT:
            return self._detect_at_size(image)
        return boxes / np.float32(scale)

    def _detect_at_size(self, image: Image) -> npt.NDArray[np.float32]:
        boxes = self._engine()._load_det_model()(_padded(image)).boxes
        return np.empty((0, 4, 2), np.float32) if boxes is None else np.asarray(boxes, np.float32)

    def _recognise(self, crops: list[Image]) -> list[tuple[str, float]]:
        """Text and confidence of each line.

        Line by line: batches of six (the engine's default) cost as much CPU a line, and 0.3 GB more memory.
        """
        from rapidocr.ch_ppocr_rec import TextRecInput

        model = self._engine()._load_rec_model()

        def read(crop: Image) -> tuple[str, float]:
            output = model(TextRecInput(img=[crop], return_word_box=False))
            return str(output.txts[0]), float(output.scores[0])

        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(read, crops))

    def _orientation(self, image: Image, boxes: npt.NDArray[np.float32]) -> _Orientation:
        """How far the image must be turned: the longest lines are read, both ways unless the first is convincing."""
        sizes = [_size(box) for box in boxes]
        tall = sum(width * height for width, height in sizes if height > 1.5 * width)
        is_sideways = tall > 0.5 * sum(width * height for width, height in sizes)
        order = sorted(range(len(boxes)), key=lambda index: max(sizes[index]), reverse=True)
        fitting = [i for i in order if (sizes[i][1] > 1.5 * sizes[i][0]) == is_sideways][:_SAMPLES]
        if not fitting:
            return _Orientation(0, {})
        crops = [_crop(image, boxes[index], turn_tall=False) for index in fitting]
        first, second = (90, 270) if is_sideways else (0, 180)
        read = self._recognise([_turned(crop, first) for crop in crops])
        score = _confidence(read)
        # Lying text has no usual way; standing text is upright unless upside down reads clearly better.
        if score < _SURE and _confidence(self._recognise([_turned(crop, second) for crop in crops])) > score + (
            0.0 if is_sideways else 0.05
        ):
            return _Orientation(second, {})
        return _Orientation(first, {} if is_sideways else dict(zip(fitting, read, strict=True)))

    def _engine(self) -> Any:
        if self._models is None:
            import rapidocr

            models = Path(rapidocr.__file__).parent / "models"
            self._models = rapidocr.RapidOCR(
                params={
                    "Global.log_level": "error",
                    "Global.max_side_len": MAX_SIDE,
                    "Det.model_path": str(_bundled(models, "det")),
                    "Rec.model_path": str(_bundled(models, "rec")),
                    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
                    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
                }
            )
        return self._models


@cache
def process_engine(threads: int) -> OcrEngine:
    """The engine that all files parsed in this process share, so that the models are loaded once.

    Args:
        threads: see `OcrEngine`; the same for all files of a process, or the models are loaded again.
    """
    return OcrEngine(threads=threads)


def _bundled(models: Path, task: str) -> Path:
    return next(iter(sorted(models.glob(f"*_{task}_*.onnx"))))


def _padded(image: Image) -> Image:
    """A thin image with a margin at the right or at the bottom, in its own background; nothing in it moves."""
    import cv2

    height, width = image.shape[:2]
    below = max(round(width * _THINNEST) - height, 0)
    beside = max(round(height * _THINNEST) - width, 0)
    if not below and not beside:
        return image
    background = [float(value) for value in np.median(image.reshape(-1, 3), axis=0)]
    padded = cv2.copyMakeBorder(image, 0, below, 0, beside, cv2.BORDER_CONSTANT, value=background)
    return np.asarray(padded, np.uint8)


def _is_blank(image: Image) -> bool:
    """Whether nothing stands out, on means of small fields so that single specks of dust do not count."""
    height, width = image.shape[:2]
    step = max(min(height, width) // 200, 1)
    grey = image[: height // step * step, : width // step * step].mean(axis=2, dtype=np.float32)
    fields = grey.reshape(height // step, step, width // step, step).mean(axis=(1, 3))
    return float(fields.max() - fields.min()) < _BLANK_CONTRAST


def _size(box: npt.NDArray[np.float32]) -> tuple[float, float]:
    width = max(float(np.linalg.norm(box[0] - box[1])), float(np.linalg.norm(box[3] - box[2])))
    height = max(float(np.linalg.norm(box[0] - box[3])), float(np.linalg.norm(box[1] - box[2])))
    return width, height


def _turned(image: Image, degrees: int) -> Image:
    return np.ascontiguousarray(np.rot90(image, k=-degrees // 90))


def _confidence(found: Sequence[tuple[str, float]]) -> float:
    """Mean confidence of the characters, 0 without any."""
    length = sum(len(text) for text, _ in found)
    return sum(score * len(text) for text, score in found) / length if length else 0.0


def _line(box: npt.NDArray[np.float32], text: str, score: float) -> OcrLine:
    left, top = box.min(axis=0)
    right, bottom = box.max(axis=0)
    return OcrLine(text, float(left), float(top), float(right), float(bottom), score)


def _crop(image: Image, box: npt.NDArray[np.float32], *, turn_tall: bool = True) -> Image:
    """The line, straightened; a tall one is turned to lie, unless `turn_tall` is false."""
    import cv2

    width, height = (max(round(value), 1) for value in _size(box))
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    straight = cv2.warpPerspective(
        image,
        cv2.getPerspectiveTransform(box, corners),
        (width, height),
        borderMode=cv2.BORDER_REPLICATE,
        flags=cv2.INTER_CUBIC,
    )
    if turn_tall and height >= 1.5 * width:
        straight = np.rot90(straight)
    return np.ascontiguousarray(straight, np.uint8)
