"""Checks and normalisation that every embedder's answer goes through."""

import numpy as np
import numpy.typing as npt

from rag_pipeline.core.ports import Vectors

SMALLEST_NORM = 1e-9
"""A shorter vector has no direction; services give one for text that they could not read."""


def unit_rows(vectors: npt.NDArray[np.floating]) -> tuple[Vectors, npt.NDArray[np.bool_]]:
    """Scale the rows of an array of shape (count, dimensions) to length 1.

    Returns:
        The rows, and which of them were usable (finite, not zero), shape (count,). Unusable rows come back as zeros.
    """
    wide = vectors.astype(np.float64)
    finite = np.isfinite(wide).all(axis=1)
    wide[~finite] = 0.0
    norms = np.linalg.norm(wide, axis=1)
    usable = finite & (norms > SMALLEST_NORM)
    wide[~usable] = 0.0
    norms[~usable] = 1.0
    return (wide / norms[:, None]).astype(np.float32), usable
