"""Recorded on one machine, replayed on another: the same plans, predictions, states, errors."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.placement.measure import to_record
from pytest_ane.mac._answers import identity
from pytest_ane.mac.testing import DeviceRule, Failure, Mac, Recorder, Replayer, Script, code_14
from pytest_ane.make.coremltools_quiet import import_coremltools
from pytest_ane.mlprogram.errors import RecordingError
from pytest_ane.mlprogram.model import read_model
from tests import device_models

MAC = Script(
    Mac("Apple M5", "26.2", "25C56", 16, "3500.1", "VirtualMac2,1", True, True),
    (
        DeviceRule("GPU", op="conv", units=("ALL",), cost=0.5),
        DeviceRule("CPU", op="tanh"),
        DeviceRule("none", op="relu"),
    ),
)
ONES = np.ones((1, 64, 1, 4), np.float32)


@pytest.fixture(scope="module")
def ct() -> Any:
    return import_coremltools()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return device_models.save(tmp_path_factory.mktemp("packages"))


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may run in a worker themselves."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return tmp_path / "recording"


def _compiled(package: Path, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    target = folder / f"{package.stem}.mlmodelc"
    shutil.rmtree(target, ignore_errors=True)
    return str(import_coremltools().models.utils.compile_model(str(package), str(target)))


def _plan(compiled: str, units: str) -> Any:
    ct = import_coremltools()
    plan = ct.models.compute_plan.MLComputePlan.load_from_path(compiled, ct.ComputeUnit[units])
    return to_record(plan, units, compiled)


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["conv", "branches", "functions", "state"])
def test_plans(packages: dict[str, Path], name: str, recording: Path, tmp_path: Path) -> None:
    with Replayer(MAC):
        compiled = _compiled(packages[name], tmp_path / "mac")
        with Recorder(recording) as recorder:
            plans = [_plan(compiled, units) for units in ("ALL", "CPU_AND_NE")]
    assert recorder.skipped == ()
    assert plans[0] != plans[1] or name in ("branches", "state")
    assert Script.load(recording).machine == MAC.machine
    with Replayer(recording):
        compiled = _compiled(packages[name], tmp_path / "elsewhere")
        for plan in reversed(plans):
            assert _plan(compiled, plan.compute_units) == plan
        with pytest.raises(RecordingError, match="no plan of this model with CPU_ONLY; record it"):
            _plan(compiled, "CPU_ONLY")


def test_models_of_the_same_operations_are_told_apart_by_their_weights(
    packages: dict[str, Path], recording: Path, tmp_path: Path
) -> None:
    other = packages["conv"].with_name("conv2.mlpackage")
    one, two = (identity(read_model(path)) for path in (packages["conv"], other))
    assert one.operations == two.operations
    assert one.weights != two.weights
    with Replayer(MAC), Recorder(recording):
        _plan(_compiled(packages["conv"], tmp_path), "ALL")
    with Replayer(recording), pytest.raises(RecordingError, match="no plan of this model with ALL"):
        _plan(_compiled(other, tmp_path), "ALL")


def test_plans_of_one_model_come_in_order(
    packages: dict[str, Path], recording: Path, tmp_path: Path
) -> None:
    with Replayer(Script(unassigned_paths=1)):
        first, second = (_compiled(packages["conv"], tmp_path / name) for name in "ab")
        with Recorder(recording):
            plans = [_plan(path, "ALL") for path in (first, second)]
    assert [any(one.preferred for _, one in plan.walk()) for plan in plans] == [False, True]
    with Replayer(recording):
        assert [_plan(first, "ALL").functions for _ in range(3)] == [
            plans[0].functions, plans[1].functions, plans[1].functions
        ]  # fmt: skip


def test_predictions(packages: dict[str, Path], recording: Path, tmp_path: Path, ct: Any) -> None:
    with Replayer(MAC):
        compiled = _compiled(packages["conv"], tmp_path)
        with Recorder(recording):
            model = ct.models.CompiledMLModel(compiled)
            single = model.predict({"x": ONES})
            batch = model.predict([{"x": ONES * 2}, {"x": ONES * 3}])
    _tamper(recording, 0.25)
    with Replayer(recording):
        model = ct.models.CompiledMLModel(_compiled(packages["conv"], tmp_path))
        (name,) = single
        assert (model.predict({"x": ONES})[name] == single[name] + 0.25).all()
        again = model.predict([{"x": ONES * 2}, {"x": ONES * 3}])
        for old, new in zip(batch, again, strict=True):
            assert (new[name] == old[name] + 0.25).all()
        with pytest.raises(RecordingError, match="does not have this prediction"):
            model.predict({"x": ONES * 4})
        only = ct.models.CompiledMLModel(compiled, ct.ComputeUnit.CPU_ONLY)
        with pytest.raises(RecordingError, match="does not have this prediction"):
            only.predict({"x": ONES})


def _tamper(recording: Path, more: float) -> None:
    """Change what is recorded, so that computing it again would be noticed."""
    from safetensors.numpy import load_file, save_file

    for file in (recording / "values").iterdir():
        save_file({name: array + more for name, array in load_file(file).items()}, file)


def test_a_package_and_what_was_compiled_of_it_are_one_model(
    packages: dict[str, Path], recording: Path, tmp_path: Path, ct: Any
) -> None:
    with Replayer(MAC), Recorder(recording):
        expected = ct.models.MLModel(str(packages["conv"])).predict({"x": ONES})
    with Replayer(recording):
        model = ct.models.CompiledMLModel(_compiled(packages["conv"], tmp_path))
        (name,) = expected
        np.testing.assert_array_equal(model.predict({"x": ONES})[name], expected[name])


def test_states(packages: dict[str, Path], recording: Path, ct: Any) -> None:
    def run() -> list[Any]:
        model = ct.models.MLModel(str(packages["state"]))
        first, second = model.make_state(), model.make_state()
        found = [model.predict({"x": np.array([1.0, 2.0])}, first)["y"] for _ in range(3)]
        found.append(first.read_state("total"))
        first.write_state("total", np.array([10.0, 20.0], np.float32))
        return [
            *found,
            model.predict({"x": np.array([1.0, 2.0])}, first)["y"],
            model.predict({"x": np.array([1.0, 2.0])}, second)["y"],
        ]

    with Replayer(MAC), Recorder(recording):
        recorded = [array.tolist() for array in run()]
    assert recorded == [[1, 2], [2, 4], [3, 6], [3, 6], [11, 22], [1, 2]]
    _tamper(recording, 0.5)
    with Replayer(recording):
        assert [(array - 0.5).tolist() for array in run()] == recorded


def test_a_state_that_was_replayed_cannot_be_computed_on(
    packages: dict[str, Path], recording: Path, ct: Any
) -> None:
    x = {"x": np.array([1.0, 2.0])}
    with Replayer(MAC), Recorder(recording):
        model = ct.models.MLModel(str(packages["state"]))
        model.predict(dict(x), model.make_state())
    Script(MAC.machine).save(recording)
    with Replayer(recording):
        model = ct.models.MLModel(str(packages["state"]))
        state, fresh = model.make_state(), model.make_state()
        model.predict(dict(x), state)
        with pytest.raises(RecordingError, match="does not have this prediction"):
            model.predict(dict(x), state)
        with pytest.raises(RecordingError, match="does not have this prediction"):
            state.read_state("total")
        other = model.predict({"x": np.array([5.0, 5.0])}, fresh)
        assert other["y"].tolist() == [5, 5]


def test_errors_come_where_they_came(
    packages: dict[str, Path], recording: Path, tmp_path: Path, ct: Any
) -> None:
    failures = (code_14(), Failure("predict", "late", after=1), Failure("compile", "first"))

    def run(folder: Path) -> list[str]:
        said = []
        for ask in (
            lambda: _compiled(packages["conv"], folder),
            lambda: _compiled(packages["conv"], folder),
            lambda: _plan(str(folder / "conv1.mlmodelc"), "ALL").ane_cores,
            lambda: _plan(str(folder / "conv1.mlmodelc"), "ALL").ane_cores,
            lambda: len(ct.models.CompiledMLModel(str(folder / "conv1.mlmodelc")).predict(x())),
            lambda: len(ct.models.CompiledMLModel(str(folder / "conv1.mlmodelc")).predict(x())),
        ):
            try:
                said.append(str(ask()))
            except RuntimeError as error:
                said.append(str(error))
        return [text.replace(str(folder), "FOLDER") for text in said]

    def x() -> dict[str, Any]:
        return {"x": ONES}

    with Replayer(Script(failures=failures)), Recorder(recording):
        recorded = run(tmp_path / "mac")
    assert recorded == [
        "first",
        "FOLDER/conv1.mlmodelc",
        "Failed to build the model execution plan using a model architecture file "
        "'FOLDER/conv1.mlmodelc/model.mil' with error code: -14.",
        "16",
        "1",
        "late",
    ]
    with Replayer(recording):
        assert run(tmp_path / "elsewhere") == recorded


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("plans/00000.json", b"{", "the JSON is damaged"),
        ("plans/00000.json", b'{"infos": []}', "does not say of which model it is"),
        ("values", b"\xff" * 20, "is damaged"),
    ],
)
def test_what_is_damaged_is_one_sentence(
    packages: dict[str, Path], recording: Path, ct: Any, tmp_path: Path, file: str, content: bytes,
    sentence: str,
) -> None:  # fmt: skip
    def run() -> None:
        compiled = _compiled(packages["conv"], tmp_path)
        _plan(compiled, "ALL")
        ct.models.CompiledMLModel(compiled).predict({"x": ONES})

    with Replayer(MAC), Recorder(recording):
        run()
    path = recording / file
    damaged = next(path.iterdir()) if path.is_dir() else path
    damaged.write_bytes(content)
    with Replayer(recording), pytest.raises(RecordingError, match=sentence) as error:
        run()
    assert str(damaged) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(sys.platform == "darwin", reason="there is Core ML to record")
def test_what_is_not_recorded(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordingError, match=r"no Core ML on this machine; record on a Mac\.$"):
        Recorder(recording).__enter__()
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    with pytest.raises(RecordingError, match="workers of xdist are not recorded"):
        Recorder(recording).__enter__()
    assert not recording.exists()
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    with Replayer(MAC):
        with Recorder(recording):
            pass
        with pytest.raises(RecordingError, match="holds a recording; delete it"):
            Recorder(recording).__enter__()
