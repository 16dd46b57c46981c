"""Loading, compiling again, and what is said when Core ML fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend, get_backend
from pytest_ane.gates.placement.measure import measure, plan_on_device
from pytest_ane.mac.testing import Failure, code_14, stale
from pytest_ane.make import Cache
from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.errors import ExecutionError, ProgramError, UnprovenError
from pytest_ane.mlprogram.model import read_model
from tests.backends.coreml.conftest import Backend
from tests.mlprogram.packages import doubling

X = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
Compiled = Callable[[], list[Path]]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return doubling().save(tmp_path)


def test_it_answers_as_the_executor_does(backend: Backend, package: Path, said: list[str]) -> None:
    ours, theirs = CpuBackend(), backend()
    assert (ours.on_device, theirs.on_device) == (False, True)
    expected = ours.load(package).predict(X)
    found = theirs.load(package).predict(X)
    assert found.keys() == expected.keys()
    assert found["y"].dtype == np.float32
    assert found["y"].tolist() == expected["y"].tolist()
    assert said == []


def test_it_is_compiled_once(backend: Backend, package: Path, compiled: Compiled) -> None:
    failure = Failure("compile", "twice", after=1, times=None)
    backend(failure).load(package)
    (first,) = compiled()
    backend(failure).load(package)
    assert compiled() == [first]


@pytest.mark.slow
def test_xcode_compiles_where_it_is(backend: Backend, package: Path, compiled: Compiled) -> None:
    runner = backend(compiler="3500.32.1").load(package)
    assert runner.predict(X)["y"].tolist() == (2 * X["x"]).tolist()
    (found,) = compiled()
    assert list(found.parent.iterdir()) != []
    assert read_model(found).inputs == read_model(package).inputs


def test_compiled_models_are_entries_of_the_cache(backend: Backend, package: Path) -> None:
    mine = backend()
    mine.load(package)
    cache = Cache(compiled_root(mine))
    (entry,) = cache.entries()
    assert (entry.kind, entry.size > 0) == ("compiled", True)
    cache.remove(entry)
    assert mine.load(package).predict(X)["y"][0, 1] == 2


@pytest.mark.parametrize(
    ("of", "here", "failure", "why"),
    [
        ("25B78", "25B78", code_14("load"), "Core ML refused its compiled model (-14)"),
        ("25A354", "25B78", stale("load"),
         "its compiled model was of macOS build 25A354, and this is 25B78"),
    ],
)  # fmt: skip
def test_a_stale_model_is_compiled_again_and_said_so(
    backend: Backend, package: Path, compiled: Compiled, said: list[str],
    of: str, here: str, failure: Failure, why: str,
) -> None:  # fmt: skip
    backend(build=of).load(package)
    (before,) = compiled()
    assert backend(failure, build=here).load(package).predict(X)["y"][1, 2] == 10
    (after,) = compiled()
    assert after != before
    assert said == [f"{package}: {why}; it is compiled again."]
    backend(build=here).load(package)
    assert compiled() == [after]


@pytest.mark.parametrize("name", ["model.mlmodelc/model.mil", "compiled.json"])
def test_an_edited_model_is_compiled_again_and_said_so(
    backend: Backend, package: Path, compiled: Compiled, said: list[str], name: str
) -> None:
    backend().load(package)
    (before,) = compiled()
    edited = before.parent / name
    whole = edited.read_bytes()
    edited.write_bytes(whole + b" ")
    backend().load(package)
    assert compiled() == [before]
    assert edited.read_bytes() == whole
    (sentence,) = said
    assert sentence.startswith(f"{package}: its compiled model in the cache (compiled/")
    assert sentence.endswith(f") was damaged or edited: {name} has other bytes; it is made again.")


def test_another_compiler_makes_another_entry_in_silence(
    backend: Backend, package: Path, compiled: Compiled, said: list[str]
) -> None:
    backend().load(package)
    backend(compiler="3500.32.1").load(package)
    assert (len(compiled()), said) == (2, [])


def test_a_second_failure_is_one_sentence(backend: Backend, package: Path, said: list[str]) -> None:
    mine = backend(code_14("load", times=None))
    with pytest.raises(ExecutionError) as raised:
        mine.load(package)
    text = str(raised.value)
    assert text.startswith(
        f"{package}: Core ML failed, though it was compiled again: Failed to build the model "
        "execution plan"
    )
    assert "(Core ML built no plan (-14): per-block quantization" in text
    assert len(said) == 1
    with pytest.raises(ExecutionError):
        mine.load(package)
    assert len(said) == 1, "compiled again once in a process, not at every attempt"


def test_what_two_processes_find_stale_is_compiled_once(
    backend: Backend, package: Path, said: list[str], compiled: Compiled
) -> None:
    one = backend(code_14("load", times=2))
    other = get_backend("coreml", cache=Cache(compiled_root(one)), say=said.append)
    before = one._compiled.get(package)
    after = one._compiled.get(package, before)
    assert other._compiled.get(package, before) == after  # type: ignore[attr-defined]
    assert len(said) == 1
    assert compiled() == [after]


def test_what_another_process_deletes_meanwhile_is_compiled_once_more(
    backend: Backend, package: Path, said: list[str]
) -> None:
    seen = []

    def use(model: Path) -> str:
        seen.append(model)
        if len(seen) == 1:
            shutil.rmtree(model.parent)
            raise RuntimeError("The file does not exist")
        return "used"

    assert backend().with_compiled(package, use) == "used"
    assert (seen[1].is_dir(), said) == (True, [])


def compiled_root(backend: object) -> Path:
    return backend._cache.root  # type: ignore[attr-defined]


def test_other_errors_are_explained_and_nothing_is_compiled_again(
    backend: Backend, package: Path, said: list[str]
) -> None:
    with pytest.raises(ExecutionError, match=r"0x20004\) \(The ANE could not load the compiled"):
        backend(Failure("load", "Program load failure (0x20004)")).load(package)
    assert said == []


@pytest.mark.parametrize(
    ("compiler", "sentence"),
    [
        ("", r"Core ML could not compile it: no such op"),
        pytest.param("3500.32.1", "compile` could not .* no such op", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_one_sentence(
    backend: Backend, package: Path, compiler: str, sentence: str
) -> None:
    mine = backend(Failure("compile", "no such op"), compiler=compiler)
    with pytest.raises(ExecutionError, match=sentence):
        mine.load(package)


def test_what_is_no_package_is_not_compiled(backend: Backend, package: Path) -> None:
    other = package.rename(package.with_suffix(".folder"))
    with pytest.raises(ExecutionError, match=r"folders named \*.mlpackage"):
        backend().load(other)
    with pytest.raises(ProgramError, match="no such folder"):
        backend().load(package)


def test_a_compiled_artifact_is_used_as_it_is(
    backend: Backend, package: Path, compiled: Compiled
) -> None:
    own = write_compiled(read_model(package), package.with_suffix(".mlmodelc"))
    assert backend().load(own).predict(X)["y"][1, 0] == 6
    with pytest.raises(ExecutionError, match="no package here to compile again, so compile its"):
        backend(code_14("load")).load(own)
    assert compiled() == []


def test_a_plan_is_read_through_it(backend: Backend, package: Path, said: list[str]) -> None:
    mine = backend(code_14("plan"))
    plan = plan_on_device(mine, package, read_model(package))
    assert plan.compute_units == "CPU_AND_NE"
    assert [(op.name, op.preferred) for op in plan.functions[0].operations][-1] == ("y", "ANE")
    assert said == [f"{package}: Core ML refused its compiled model (-14); it is compiled again."]


def test_a_number_that_core_ml_did_not_make_says_so(backend: Backend) -> None:
    assert backend().provenance()["native"] == "replaced by pytest-ane, not Core ML"


def test_the_provenance_names_machine_units_and_versions(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = backend(chip="Apple M2", os="26.1", build="25B78", units="CPU_ONLY")
    monkeypatch.delattr("coremltools.libcoremlpython.PYTEST_ANE")
    found = mine.provenance()
    assert list(found) == ["backend", "chip", "os", "os_build", "mac", "virtual", "translated",
                           "devices", "ane_cores", "compute_units", "compiler", "coremltools",
                           "pytest-ane", "numpy", "python"]  # fmt: skip
    assert [found[key] for key in list(found)[:10]] == [
        "coreml", "Apple M2", "macOS 26.1", "25B78", "Mac16,5", "no", "no", "CPU, GPU, ANE", "16",
        "CPU_ONLY",
    ]  # fmt: skip
    assert all(found.values())


def test_without_an_ane_it_is_no_device(backend: Backend, package: Path) -> None:
    for units in ("ALL", "CPU_AND_NE"):
        mine = backend(units=units, cores=0)
        assert not mine.on_device
        with pytest.raises(UnprovenError) as raised:
            measure(mine, package, read_model(package), size_bytes=1)
        assert str(raised.value) == (
            "This is a Mac for which Core ML lists no Neural Engine (Mac16,5), which proves "
            "nothing of the ANE; to compare on the CPU, run with --ane-compute-units=CPU_ONLY"
        )
    alone = backend(units="CPU_ONLY", cores=0)
    alone.require_ane()
    assert alone.load(package).predict(X)["y"][1, 0] == 6
