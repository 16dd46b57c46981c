"""Every experiment's rows say what its program computes: scored, they are the arithmetic it ran in.

The executor stands in for a Mac: in the ANE's arithmetic for operations with a rule, else typed.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.ane_arithmetic import OPERATIONS, fits, scored
from benchmarks.ane_arithmetic import main as score
from pytest_ane.backends import CpuBackend
from pytest_ane.backends.coreml import Machine
from pytest_ane.backends.coreml.process import Device
from pytest_ane.mac._experiments import EXPERIMENTS, Experiment, Row, record, rows_of, to_csv
from pytest_ane.mac.testing import DeviceRule, Mac, Replayer, Script
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.model import read_model

M4 = Machine("Apple M4 Max", "macOS 26.1", "25B78", "coremlcompiler 3500.32.1")
FITTING = {"reduce_sum": "wide, rounded once", "conv_int8": "scale in the weight"}
"""What the typed executor does, where it is among the candidates."""


@pytest.fixture(params=EXPERIMENTS, scope="module")
def experiment(request: pytest.FixtureRequest) -> Experiment:
    return EXPERIMENTS[request.param]()


def rows(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """Its rows as they are read from a file."""
    arithmetic = "ane" if experiment.op in OPERATIONS else "typed"
    runner = CpuBackend(arithmetic=arithmetic).load(experiment.save(folder))
    (output,) = runner.predict(experiment.inputs).values()
    data = to_csv(rows_of(experiment, output, output, M4), "a comment").decode()
    return list(csv.DictReader(data.splitlines()[1:]))


@pytest.mark.drawn
@pytest.mark.slow
def test_rows_describe_the_program(experiment: Experiment, tmp_path: Path) -> None:
    recorded = rows(experiment, tmp_path)
    results, reasons = scored(recorded)
    if experiment.op in OPERATIONS:
        assert [str(r) for r in results if not r.is_reproduced] == []
        assert (len(results), reasons) == (len(recorded), {})
    elif experiment.op in FITTING:
        fit = f"{experiment.op}, {FITTING[experiment.op]}: {len(recorded)} of {len(recorded)} rows"
        assert any(fit in line for line in fits(recorded))
    else:
        assert results == []


@pytest.mark.drawn
@pytest.mark.slow
def test_names_and_sizes(experiment: Experiment, tmp_path: Path) -> None:
    names = [sample.name for sample in experiment.samples]
    assert len(set(names)) == len(names) >= 17
    program = read_model(experiment.save(tmp_path)).program
    kinds = [op.op for op in program.walk() if not op.op.startswith("const")]
    assert kinds == [experiment.kind]
    for sample in experiment.samples:
        assert json.loads(json.dumps(sample.operands)) == sample.operands


@pytest.mark.drawn(2)
@pytest.mark.slow
def test_candidates_are_told_apart() -> None:
    """Each pair of candidates differs on some row of the experiments that are to settle them."""
    from benchmarks.ane_candidates import CANDIDATES

    made = [make() for name, make in EXPERIMENTS.items() if name.startswith(("red", "real", "con"))]
    with np.errstate(all="ignore"):
        for op, candidates in CANDIDATES.items():
            operands = [s.operands for e in made if e.op == op for s in e.samples]
            results = [
                tuple(np.float16(compute(o)).tobytes() for o in operands)
                for compute in candidates.values()
                if operands
            ]
            assert len(set(results)) == len(results), op


@pytest.fixture
def genuine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replayed module counts as Core ML's own."""
    monkeypatch.setattr("pytest_ane.mac._experiments.is_replaced", lambda: False)


def recorded(*rules: DeviceRule) -> list[Row]:
    with Replayer(Script(Mac(compiler=""), rules)):
        return record(EXPERIMENTS["real_div"](), Machine.detect(), Device(None))


def test_rows_of_a_replayed_mac_are_no_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = rows = recorded()
    assert (first.id, first.chip) == ("real_div/0", "M4 Max macOS 26.1 (25B78)")
    assert (first.operands, first.ane_fp16) == ('{"x":"0x3c00","y":"0x4200"}', "0x3555")
    assert first.ane == first.cpu == "0.333251953125"
    (tmp_path / "rows.csv").write_bytes(to_csv(rows))
    assert score(["--rows", str(tmp_path / "rows.csv")]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "0 of 0 scored rows reproduced, 200 not scored"
    )


@pytest.mark.usefixtures("genuine")
def test_outputs_that_equal_the_cpu_s_are_no_evidence() -> None:
    (note,) = {row.note for row in recorded()}
    assert note.startswith("every output of the program equals the CPU's")


def test_an_operation_elsewhere_has_no_rows() -> None:
    with pytest.raises(ExecutionError, match="the plan places real_div on CPU, not on the ANE"):
        recorded(DeviceRule("CPU", op="real_div"))
