"""A small test set in the BEIR layout."""

import json
from pathlib import Path
from typing import Any

CORPUS: list[dict[str, Any]] = [
    {"_id": "pump", "title": "Pump P-7", "text": "The pump is serviced every 4000 hours.\nIts seal is made of rubber."},
    {"_id": "valve/2", "title": "", "text": "Valve V-2 closes at 16 bar.\n\nIt opens again at 12 bar."},
    {"_id": "水泵", "title": "", "text": "水泵每四千小时保养一次。"},
]
QUERIES = {"q1": "When is the pump serviced?", "q2": "At which pressure does the valve open again?", "q3": "unjudged"}
RELEVANT = {"q1": {"pump": 1, "水泵": 0}, "q2": {"valve/2": 1}}
ANSWERS = {"q1": ("pump", "every 4000 hours"), "q2": ("valve/2", "12 bar")}


def write_set(folder: Path, *, corpus: list[dict[str, Any]] = CORPUS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "corpus.jsonl", corpus)
    _write(folder / "queries.jsonl", [{"_id": each, "text": text} for each, text in QUERIES.items()])
    lines = [f"{query}\t{item}\t{grade}" for query, found in RELEVANT.items() for item, grade in found.items()]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n", "utf-8")
    texts = {row["_id"]: row["text"] for row in corpus}
    _write(
        folder / "evidence.jsonl",
        [
            {"qid": query, "doc": item, "start": (at := texts[item].index(answer)), "end": at + len(answer)}
            for query, (item, answer) in ANSWERS.items()
        ],
    )
    return folder


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
