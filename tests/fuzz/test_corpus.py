"""The corpus of the fuzzers, replayed: every input ends as it may, in time and in memory."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_any, read_model
from pytest_ane.mlprogram.proto import definitions
from pytest_ane.mlprogram.records import Pipeline
from tests.fuzz.limits import MEMORY_FACTOR, SECONDS
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS, target
from tests.mlprogram.packages import doubling, model_file

CORPUS = Path(__file__).parent / "corpus"
SEEDS = ["every", "image", "kinds", "loop", "state", "pipeline"]


def seeds() -> list[bytes]:
    return [(CORPUS / "package" / f"{name}.mlmodel").read_bytes() for name in SEEDS]


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(tmp_path: Path, name: str) -> None:
    run = target(name, tmp_path)
    files = sorted((CORPUS / name).iterdir())
    assert files
    for file in files:
        start = time.monotonic()
        run(file.read_bytes())
        assert time.monotonic() - start < SECONDS, file.name


def test_it_is_small() -> None:
    sizes = [file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()]
    assert sum(sizes) < 100_000


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_are_sound(tmp_path: Path, name: str) -> None:
    """Mutations of what is refused at once would reach nothing."""
    package = doubling().save(tmp_path)
    model_file(package).write_bytes((CORPUS / "package" / f"{name}.mlmodel").read_bytes())
    found = read_any(package, weights=False)
    parts = found.parts if isinstance(found, Pipeline) else [found]
    assert all(list(part.program.walk()) for part in parts)


@pytest.mark.drawn
@pytest.mark.slow
def test_mutations_of_a_package(tmp_path: Path) -> None:
    run = target("package", tmp_path)
    random = Random(5)
    for _ in range(300):
        message = definitions().Model.FromString(random.choice(seeds()))
        mutate(message, random)
        run(message.SerializeToString())


@pytest.mark.drawn
@pytest.mark.slow
def test_mutations_are_prepared_or_refused(tmp_path: Path) -> None:
    """Most fail for want of a parameter; that, too, ends in a sentence."""
    package = doubling().save(tmp_path)
    random, prepared = Random(7), 0
    for _ in range(300):
        message = definitions().Model.FromString(random.choice(seeds()))
        mutate(message, random)
        model_file(package).write_bytes(message.SerializeToString())
        with suppress(AneError):
            prepared += bool(Session(read_model(package, weights=False)))
    assert prepared


def empty_operations(size: int) -> bytes:
    program = doubling()
    for _ in range(size // 2):
        program.block.operations.add()
    return program.model.SerializeToString()


def text(statement: str) -> bytes:
    return f"program(1.3) {{ func main<ios18>(fp16 x) {{ {statement} }} -> (x); }}".encode()


def short_statements(size: int) -> bytes:
    return text("f();" * (size // 4))


def numbers_of_a_list(size: int) -> bytes:
    numbers = ",".join("1" * (size // 2))
    return text(f"list<fp16, ?> c = const()[val = list<fp16, ?>([{numbers}])];")


def empty_objects(size: int) -> bytes:
    return b"[" + b"{}," * (size // 3) + b"{}]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("package", empty_operations),
        ("text", short_statements),
        ("text", numbers_of_a_list),
        ("metadata", empty_objects),
    ],
)
def test_what_memory_the_worst_known_inputs_take(tmp_path: Path, name: str, make: object) -> None:
    """Nothing known takes more for a byte."""
    data = make(8_000)  # type: ignore[operator]
    run = target(name, tmp_path)
    run(b"")
    tracemalloc.start()
    try:
        run(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_FACTOR * len(data)
