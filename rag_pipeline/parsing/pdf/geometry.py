"""Coordinates: from PDF user space to frames in which text runs left to right and lines follow top to bottom.

A page is shown after its `/Rotate` and cropped to its visible box: "display" coordinates have their origin at the top
left of that, in points. Text may run in four directions there; each direction has its own frame, so that lines,
columns and tables are found by one code for upright, turned and vertical text. Pure arithmetic, no PDF access.
"""

from typing import NamedTuple

from rag_pipeline.core.parsed_document import BoundingBox


class Box(NamedTuple):
    """A rectangle with the origin at the top left, in points."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """Horizontal extent."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """Vertical extent."""
        return self.bottom - self.top

    def union(self, other: "Box") -> "Box":
        """The smallest box around both."""
        return Box(
            min(self.left, other.left),
            min(self.top, other.top),
            max(self.right, other.right),
            max(self.bottom, other.bottom),
        )


class Affine(NamedTuple):
    """Axis-aligned transformation: x' = xx * x + xy * y + x0, y' = yx * x + yy * y + y0."""

    xx: float
    xy: float
    x0: float
    yx: float
    yy: float
    y0: float

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Transform one point."""
        return self.xx * x + self.xy * y + self.x0, self.yx * x + self.yy * y + self.y0

    def box(self, x1: float, y1: float, x2: float, y2: float) -> Box:
        """Transform two opposite corners into a box."""
        first_x, first_y = self.point(x1, y1)
        second_x, second_y = self.point(x2, y2)
        return Box(min(first_x, second_x), min(first_y, second_y), max(first_x, second_x), max(first_y, second_y))

    def then(self, after: "Affine") -> "Affine":
        """This transformation followed by another."""
        x0, y0 = after.point(self.x0, self.y0)
        return Affine(
            after.xx * self.xx + after.xy * self.yx,
            after.xx * self.xy + after.xy * self.yy,
            x0,
            after.yx * self.xx + after.yy * self.yx,
            after.yx * self.xy + after.yy * self.yy,
            y0,
        )


def display_transform(rotation: int, box: tuple[float, float, float, float]) -> Affine:
    """From user space to display.

    Args:
        rotation: degrees clockwise by which the page is turned when shown: 0, 90, 180 or 270.
        box: left, bottom, right, top of the visible part in user space.
    """
    left, bottom, right, top = box
    return {
        0: Affine(1, 0, -left, 0, -1, top),
        90: Affine(0, 1, -bottom, 1, 0, -left),
        180: Affine(-1, 0, right, 0, 1, -bottom),
        270: Affine(0, -1, top, -1, 0, right),
    }[rotation]


def frame_transform(direction: int, width: float, height: float) -> Affine:
    """From display to the frame of a text direction.

    Args:
        direction: 0 runs to the right, 90 upwards, 180 to the left (upside down), 270 downwards; vertical Chinese and
            Japanese uses 270 as well, since its columns also follow from right to left.
        width: of the page as shown.
        height: of the page as shown.
    """
    return {
        0: Affine(1, 0, 0, 0, 1, 0),
        90: Affine(0, -1, height, 1, 0, 0),
        180: Affine(-1, 0, width, 0, -1, height),
        270: Affine(0, 1, 0, -1, 0, width),
    }[direction]


def frame_to_display(box: Box, direction: int, width: float, height: float) -> BoundingBox:
    """The box of a frame as it lies on the page, cut to the page."""
    back = {
        0: Affine(1, 0, 0, 0, 1, 0),
        90: Affine(0, 1, 0, -1, 0, height),
        180: Affine(-1, 0, width, 0, -1, height),
        270: Affine(0, -1, width, 1, 0, 0),
    }[direction].box(*box)
    return BoundingBox(
        left=round(min(max(back.left, 0.0), width), 1),
        top=round(min(max(back.top, 0.0), height), 1),
        right=round(min(max(back.right, 0.0), width), 1),
        bottom=round(min(max(back.bottom, 0.0), height), 1),
    )
