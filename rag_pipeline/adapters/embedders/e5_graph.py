"""multilingual-e5-small as a graph for ONNX Runtime.

Matrices of the layers are int8 with a scale per output (7 bits of it: without VNNI, ONNX Runtime's kernel adds pairs of
products in 16 bits and would saturate), activations are quantized by their range as they come. Channels with a wide
range would take the steps from the others, so each is divided, and the weights that it meets are multiplied, by the
square root of its range over that of the weights (SmoothQuant, Xiao et al. 2023, equation 4 with alpha 0.5): less than
half of the error. The second feed-forward matrices stay float32: the outliers of their input move with the tokens.
Token embeddings stay as they are in the file, 4 bits with a scale per 32, and are multiplied out as they are looked up.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rag_pipeline.adapters.embedders.e5_weights import BLOCK, E5Weights, Floats

if TYPE_CHECKING:
    from onnx import ModelProto

QUANTIZED_TOP = 63
"""Largest int8 weight."""
LEAST_RANGE = 1e-5
"""Of a channel that seems to be always 0."""
MICROSOFT = "com.microsoft"


class Graph:
    """Input `input_ids`, shape (1, tokens): one text, no padding. Output the mean token state, shape (1, hidden)."""

    def __init__(self, weights: E5Weights, ranges: Mapping[str, Floats] | None) -> None:
        """A graph of these weights.

        Args:
            weights: the model.
            ranges: greatest magnitude of each channel that a matrix is multiplied with, by the name in `inputs`; None:
                nothing is quantized.
        """
        self.inputs: dict[str, str] = {}
        """What `model` multiplies matrices with: by matrix, the name of a value of the graph."""
        self._ranges = ranges
        self._weights = weights
        self._sizes = weights.sizes
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def model(self) -> "ModelProto":
        """The graph as a model; needs the package `onnx`."""
        from onnx import TensorProto, helper

        state = self._embeddings()
        for layer in range(self._sizes.layers):
            state = self._layer(f"l{layer}.", state)
        self._node("ReduceMean", [state], "vectors", axes=[1], keepdims=0)
        tokens = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "tokens"])
        vectors = helper.make_tensor_value_info("vectors", TensorProto.FLOAT, [1, self._sizes.hidden])
        graph = helper.make_graph(self._nodes, "multilingual-e5-small", [tokens], [vectors], self._constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def _embeddings(self) -> str:
        """Token embeddings, multiplied out of their blocks, plus positions counted from 0."""
        from onnx import TensorProto

        hidden, weights = self._sizes.hidden, self._weights
        words, scales = weights.blocks("emb.word", len(weights.vocabulary.pieces), hidden)
        self._node("Gather", [self._constant("words", words), "input_ids"], "word.stored")
        self._node("Cast", ["word.stored"], "word.wide", to=TensorProto.FLOAT)
        self._node("Reshape", ["word.wide", self._constant("by_block", np.array([0, 0, -1, BLOCK]))], "word.blocks")
        self._node("Gather", [self._constant("scales", scales), "input_ids"], "scale.stored")
        self._node("Cast", ["scale.stored"], "scale.wide", to=TensorProto.FLOAT)
        self._node("Unsqueeze", ["scale.wide", self._constant("last", np.array([-1]))], "scale.blocks")
        self._node("Mul", ["word.blocks", "scale.blocks"], "word.scaled")
        self._node("Reshape", ["word.scaled", self._constant("by_token", np.array([0, 0, hidden]))], "word")
        table = weights.floats("emb.pos", self._sizes.positions, hidden) + weights.floats("emb.type", hidden)
        first = self._constant("first", np.array([0]))
        self._node("Shape", ["input_ids"], "length", start=1)
        self._node("Slice", [self._constant("positions", table), first, "length", first], "position")
        self._node("Add", ["word", "position"], "embedding")
        norm = self._norm("emb.ln")
        return self._node("LayerNormalization", ["embedding", *norm], "state", epsilon=self._sizes.epsilon)

    def _layer(self, name: str, state: str) -> str:
        """One transformer layer, normalised after each half."""
        hidden, wide = self._sizes.hidden, self._sizes.feed_forward
        projected = self._linear(name + "qkv", [name + "q", name + "k", name + "v"], state, hidden, hidden)
        parts = [name + "query", name + "key", name + "value"]
        self._split(projected, parts)
        self._node("MultiHeadAttention", parts, name + "attention", domain=MICROSOFT, num_heads=self._sizes.heads)
        attended = self._linear(name + "attended", [name + "ao"], name + "attention", hidden, hidden)
        middle = self._add_and_norm(name + "middle", attended, state, name + "aln")
        inner = self._linear(name + "inner", [name + "fi"], middle, wide, hidden)
        self._node("Gelu", [inner], name + "gelu", domain=MICROSOFT)
        outer = self._linear(name + "outer", [name + "fo"], name + "gelu", hidden, wide, quantized=False)
        return self._add_and_norm(name + "state", outer, middle, name + "oln")

    def _linear(
        self, output: str, tensors: list[str], source: str, rows: int, columns: int, *, quantized: bool = True
    ) -> str:
        """The matrices side by side, each of shape (rows, columns), times the source, plus their biases."""
        matrix = np.concatenate([self._weights.matrix(tensor + ".w", rows, columns) for tensor in tensors])
        bias = np.concatenate([self._weights.floats(tensor + ".b", rows) for tensor in tensors])
        bias_name = self._constant(output + ".bias", bias)
        self.inputs[output] = source
        if self._ranges is None or not quantized:
            self._node("MatMul", [source, self._constant(output + ".weights", matrix.T)], output + ".product")
            return self._node("Add", [output + ".product", bias_name], output)
        divisor = _smoothing(self._ranges[output], matrix)
        stored, scale = _quantized(matrix * divisor)
        smoothed = self._node("Mul", [source, self._constant(output + ".factor", 1 / divisor)], output + ".smoothed")
        inputs = [
            smoothed,
            self._constant(output + ".weights", stored.T),
            self._constant(output + ".scale", scale),
            self._constant(output + ".zero", np.zeros(len(scale), dtype=np.int8)),
            bias_name,
        ]
        return self._node("DynamicQuantizeMatMul", inputs, output, domain=MICROSOFT)

    def _split(self, source: str, outputs: list[str]) -> None:
        from onnx import helper

        sizes = self._constant(source + ".sizes", np.full(len(outputs), self._sizes.hidden))
        self._nodes.append(helper.make_node("Split", [source, sizes], outputs, axis=-1))

    def _add_and_norm(self, output: str, source: str, residual: str, norm: str) -> str:
        inputs = [source, residual, *self._norm(norm)]
        return self._node("SkipLayerNormalization", inputs, output, domain=MICROSOFT, epsilon=self._sizes.epsilon)

    def _norm(self, name: str) -> list[str]:
        hidden = self._sizes.hidden
        return [self._constant(name + part, self._weights.floats(name + part, hidden)) for part in (".w", ".b")]

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self._nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _constant(self, name: str, values: npt.NDArray[Any]) -> str:
        from onnx import numpy_helper

        if all(constant.name != name for constant in self._constants):
            self._constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name


def _smoothing(channels: Floats, matrix: Floats) -> Floats:
    """By what to divide each input channel; its geometric mean is 1."""
    weights = np.abs(matrix).max(axis=0)
    divisor: Floats = np.sqrt(np.maximum(channels, LEAST_RANGE) / np.maximum(weights, LEAST_RANGE))
    divisor /= np.exp(np.log(divisor).mean())
    return divisor


def _quantized(matrix: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """The matrix as int8 with one scale per row."""
    scale = np.abs(matrix).max(axis=1) / np.float32(QUANTIZED_TOP)
    scale[scale == 0] = 1.0
    return np.rint(matrix / scale[:, None]).astype(np.int8), scale.astype(np.float32)
