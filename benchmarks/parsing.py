"""What the parsers cost and how much they find.

`python -m benchmarks.parsing FILE...` prints one JSON object. For PDF files: CPU time of the parser as a ratio to plain
pypdfium2 text extraction, the two measured in turn (median of the ratios), pages per CPU second, peak memory of a
parser process that reads only this file, and, where poppler's `pdftotext` is installed, the share of its words that the
pages hold too. For every other file: CPU time and peak memory.

`--expected FILE` adds character accuracy for OCR: JSON lines of `{"file": name, "language": "en", "sentences": [...]}`
with sentences that the file shows.
"""

import argparse
import gc
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pypdfium2 as pdfium
from rapidfuzz.distance import Levenshtein
from rapidfuzz.fuzz import partial_ratio_alignment

from rag_pipeline.core.parsed_document import PageState, ParsedDocument
from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.parsing.pool import ParserPool
from rag_pipeline.parsing.registry import parse_file

WORD = re.compile(r"\w+")


def main() -> None:
    """Run the benchmark and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="of plain extraction and parser in turn")
    parser.add_argument("--expected", type=Path, help="JSON lines with sentences that the files show")
    arguments = parser.parse_args()
    expected = read_expected(arguments.expected) if arguments.expected else {}
    results = []
    for path in arguments.files:
        result = measure(path, arguments.rounds, expected.get(path.name))
        print(json.dumps(result), file=sys.stderr, flush=True)
        results.append(result)
    print(json.dumps({"files": results, "all": summary(results)}, indent=2))


def read_expected(path: Path) -> dict[str, dict[str, object]]:
    """The lines of `--expected` by file name."""
    return {entry["file"]: entry for entry in map(json.loads, path.read_text().splitlines())}


def measure(path: Path, rounds: int, expected: Mapping[str, object] | None) -> dict[str, object]:
    """All figures of one file."""
    parsed: list[ParsedDocument] = []
    request = ParseRequest(path=path, file_name=path.name, limits=ParseLimits(seconds=3_600))

    def read() -> None:
        parsed[:] = [parse_file(request)]

    result: dict[str, object] = {"file": path.name}
    if path.suffix.lower() == ".pdf":
        pairs = [(cpu_seconds(lambda: plain_text(path)), cpu_seconds(read)) for _ in range(rounds)]
        result["plain_seconds"] = round(statistics.median(plain for plain, _ in pairs), 3)
        result["ratio"] = round(statistics.median(own / plain for plain, own in pairs), 2)
        seconds = statistics.median(own for _, own in pairs)
    else:
        seconds = statistics.median(cpu_seconds(read) for _ in range(rounds))
    (document,) = parsed
    result["cpu_seconds"] = round(seconds, 3)
    if document.pages:
        result["pages"] = len(document.pages)
        result["ocr_pages"] = sum(page.state is PageState.OCR for page in document.pages)
        result["pages_per_cpu_second"] = round(len(document.pages) / seconds, 2)
    result["peak_memory_mb"] = peak_memory_mb(request)
    if path.suffix.lower() == ".pdf" and shutil.which("pdftotext"):
        result["pdftotext_words_found"] = words_found(path, document)
    if expected is not None:
        result["language"] = expected.get("language")
        result["character_accuracy"] = character_accuracy(document.text, expected["sentences"])
    return result


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time of a call, of all threads."""
    gc.collect()
    before = time.process_time()
    call()
    return time.process_time() - before


def plain_text(path: Path) -> int:
    """What the ratio is measured against: the text of every page and nothing else. Returns its length."""
    characters = 0
    document = pdfium.PdfDocument(path)
    for number in range(len(document)):
        page = document[number]
        textpage = page.get_textpage()
        characters += len(textpage.get_text_range())
        textpage.close()
        page.close()
    document.close()
    return characters


def peak_memory_mb(request: ParseRequest) -> float | None:
    """Of a fresh parser process, with everything that it imports."""
    with tempfile.TemporaryDirectory() as folder, ParserPool(1) as pool:
        (outcome,) = pool.parse([("file", request)], Path(folder))
    if outcome.error is not None:
        raise outcome.error
    return None if outcome.peak_memory_bytes is None else round(outcome.peak_memory_bytes / 1e6, 1)


def words_found(path: Path, document: ParsedDocument) -> float:
    """Share of pdftotext's words, each as often as it stands there, that our text of the same page has."""
    found = total = 0
    texts = subprocess.run(["pdftotext", path, "-"], capture_output=True, check=True).stdout.decode().split("\f")
    for page, text in zip(document.pages, texts, strict=False):
        wanted = words(text)
        found += (wanted & words(document.text[page.start : page.end])).total()
        total += wanted.total()
    return round(found / total, 4) if total else 1.0


def words(text: str) -> Counter[str]:
    """Words in one spelling; those broken at a line end are joined, as both programs do in their own way."""
    text = unicodedata.normalize("NFKC", text).replace("\u00ad", "")
    return Counter(WORD.findall(re.sub(r"(\w)-\s+(?=\w)", r"\1", text).replace("-", "").casefold()))


def character_accuracy(text: str, sentences: object) -> float:
    """1 - character error rate of the sentences at the place of the text that fits best; white space does not count."""
    assert isinstance(sentences, Sequence)
    seen = squeeze(text)
    errors = length = 0
    for sentence in map(squeeze, sentences):
        place = partial_ratio_alignment(sentence, seen)
        window = seen[place.dest_start : place.dest_end] if place else ""
        errors += Levenshtein.distance(sentence, window)
        length += len(sentence)
    return round(1 - errors / length, 4)


def squeeze(text: str) -> str:
    """Text in one spelling and without white space."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text)).casefold()


def summary(results: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Medians and extremes over the files."""
    found: dict[str, object] = {}
    for name in ("ratio", "pages_per_cpu_second", "peak_memory_mb", "pdftotext_words_found", "character_accuracy"):
        values = [float(str(result[name])) for result in results if result.get(name) is not None]
        if values:
            found[name] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return found


if __name__ == "__main__":
    main()
