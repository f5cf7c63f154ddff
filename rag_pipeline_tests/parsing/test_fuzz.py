"""Damaged files of every format through the parser processes: each ends as a document or as an error with a message.

The long suite takes files of one's own too: `RAG_FUZZ_FOLDER=some/folder RAG_FUZZ_INPUTS=5000 RAG_FUZZ_SEED=3 make
stress`. A failure names the seed and the number of the input; `damaged_file` makes it again.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.errors import InternalError, ParserCrashedError
from rag_pipeline.parsing.pool import STOP_GRACE_SECONDS, ParseOutcome, ParserPool
from rag_pipeline.parsing.registry import resolve, supported_extensions
from rag_pipeline.parsing.serialization import read_document
from rag_pipeline_tests.parsing.documents import check_offsets
from rag_pipeline_tests.parsing.fuzzing import MAX_BYTES, damaged
from rag_pipeline_tests.parsing.seeds import write_seeds

INPUTS_PER_SEED = 4
LONG_INPUTS = 2_000
LIMITS = ParseLimits(
    seconds=60.0,
    memory_bytes=1_000_000_000,
    max_pages=500,
    max_expanded_bytes=50_000_000,
    max_text_characters=5_000_000,
)
"""Low, so that a file that blows up shows quickly."""
MAX_SEEDS = 200


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_seeds(tmp_path_factory.mktemp("seeds"))


def test_every_family_of_formats_has_a_seed(seeds: Sequence[Path]) -> None:
    wanted = {resolve(f"file.{extension}").name for extension in supported_extensions()}
    assert {resolve(path.name).name for path in seeds} == wanted


def test_seeds_are_read_without_damage(seeds: Sequence[Path], tmp_path: Path) -> None:
    outcomes = run({path.name: path for path in seeds}, tmp_path)
    assert {key: str(outcome.error) for key, outcome in outcomes.items() if outcome.error} == {}
    assert [key for key, outcome in outcomes.items() if not (outcome.summary and outcome.summary.has_content)] == []


def test_damaged_files_end_as_a_document_or_a_clear_error(seeds: Sequence[Path], tmp_path: Path) -> None:
    check(seeds, tmp_path, inputs=INPUTS_PER_SEED * len(seeds), seed=11)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3_600)
def test_many_damaged_files_end_as_a_document_or_a_clear_error(seeds: Sequence[Path], tmp_path: Path) -> None:
    folder = os.environ.get("RAG_FUZZ_FOLDER")
    files = seeds if folder is None else files_in(Path(folder))
    inputs = int(os.environ.get("RAG_FUZZ_INPUTS", LONG_INPUTS))
    check(files, tmp_path, inputs=inputs, seed=int(os.environ.get("RAG_FUZZ_SEED", "1")))


def files_in(folder: Path) -> list[Path]:
    """At most `MAX_SEEDS` files of a folder that are not too large to be damaged many times."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and 0 < path.stat().st_size <= MAX_BYTES)
    assert found, f"no files under {MAX_BYTES} bytes in {folder}"
    return found[:MAX_SEEDS]


def check(files: Sequence[Path], folder: Path, *, inputs: int, seed: int) -> None:
    """Damage files in turn, parse them, and see that nothing else comes out than what the module promises."""
    faults: list[str] = []
    counts: Counter[str] = Counter()
    others = {suffix: [path for path in files if path.suffix == suffix] for suffix in {path.suffix for path in files}}
    with ParserPool(2) as pool:
        requests = damaged_files(files, others, folder, inputs=inputs, seed=seed)
        for outcome in pool.parse(requests, folder):
            counts["read" if outcome.error is None else outcome.error.code] += 1
            faults.extend(f"seed {seed}, input {outcome.key}: {fault}" for fault in faults_of(outcome))
            for path in (folder / outcome.key.partition(" ")[0], *outputs(outcome)):
                path.unlink(missing_ok=True)
    print(f"{inputs} inputs of {len(files)} files: {dict(counts.most_common())}")
    assert counts.total() == inputs
    assert faults == []


def damaged_files(
    files: Sequence[Path], others: Mapping[str, Sequence[Path]], folder: Path, *, inputs: int, seed: int
) -> Iterator[tuple[str, ParseRequest]]:
    for number in range(inputs):
        source = files[number % len(files)]
        path = folder / str(number)
        path.write_bytes(damaged_file(source, others[source.suffix], number, seed))
        yield f"{number} {source.name}", ParseRequest(path=path, file_name=source.name, limits=LIMITS)


def damaged_file(source: Path, others: Sequence[Path], number: int, seed: int) -> bytes:
    """Input `number` of a run with this seed."""
    chance = random.Random(f"{seed} {number}")
    return damaged(source.read_bytes(), source.name, [chance.choice(others).read_bytes()], chance)


def faults_of(outcome: ParseOutcome) -> Iterator[str]:
    error = outcome.error
    if outcome.seconds > LIMITS.seconds + STOP_GRACE_SECONDS:
        yield f"took {outcome.seconds:.0f} s"
    if error is None:
        assert outcome.path is not None
        check_offsets(read_document(outcome.path))
    elif isinstance(error, InternalError | ParserCrashedError) or len(str(error)) < 20 or "Traceback" in str(error):
        yield f"{error.code}: {error}"


def outputs(outcome: ParseOutcome) -> list[Path]:
    found = [] if outcome.path is None else [outcome.path]
    return [*found, *(image.path for image in outcome.images)]


def run(files: Mapping[str, Path], folder: Path) -> dict[str, ParseOutcome]:
    requests = [(key, ParseRequest(path=path, file_name=path.name, limits=LIMITS)) for key, path in files.items()]
    with ParserPool(2) as pool:
        return {outcome.key: outcome for outcome in pool.parse(requests, folder)}
