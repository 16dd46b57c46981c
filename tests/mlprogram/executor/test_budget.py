"""Running a program is bounded: refused by name before memory is taken, or after its time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.cli import main
from pytest_ane.mlprogram.errors import BudgetError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.budget import (
    Budget,
    current_budget,
    process_budget,
    result_elements,
)
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.executor.hungry import PROGRAMS, call, endless, fill
from tests.mlprogram.packages import Program, model_file

MEMORY = 200_000_000
MOST = 300_000_000
X = {"x": np.ones((1, 1, 4, 4), np.float32)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_small_program_that_takes_too_much_is_refused(tmp_path: Path, name: str) -> None:
    make, message = PROGRAMS[name]
    package = make().save(tmp_path)
    assert model_file(package).stat().st_size < 5_000
    budget = Budget(MEMORY, seconds=0.3 if name == "endless" else 5)
    start = time.process_time()
    with pytest.raises(BudgetError) as error:
        Session(read_model(package), budget=budget).predict(X)
    assert time.process_time() - start < 2
    assert message in str(error.value)
    assert str(error.value).endswith("raise --ane-memory." if name != "endless" else "--ane-time.")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_refused_takes_no_memory(tmp_path: Path) -> None:
    """All of them in one process, which holds 300 MB at most, numpy included."""
    packages = [str(make().save(tmp_path / name)) for name, (make, _) in PROGRAMS.items()]
    run = subprocess.run(
        [sys.executable, "-c", PEAK, *packages], capture_output=True, text=True, check=True
    )
    refused, peak = map(int, run.stdout.split())
    assert refused == len(packages)
    assert peak < MOST, peak


def test_a_budget_beside_what_is_held_already(tmp_path: Path) -> None:
    """Ten tensors of 40 MB, each within 200 MB, and all of them needed in the end."""
    program = Program()
    program.input("x", (1, 1, 4, 4))
    program.const("shape", [10_000_000], "INT32")
    program.const("axis", 0, "INT32")
    program.const("one", 1.0, "FLOAT32")
    for i in range(10):
        call(program, "fill", f"part_{i}", (None,), shape="shape", value="one")
    joined = call(program, "concat", "y", (None,), axis="axis")
    for i in range(10):
        joined.inputs["values"].arguments.add().name = f"part_{i}"
    program.output("y")
    session = Session(read_model(program.save(tmp_path)), budget=Budget(MEMORY))
    with pytest.raises(BudgetError, match=r"fill 'part_3' of 40 MB .* beside 120 MB of other"):
        session.predict(X)


def test_products_that_torch_lays_out_count() -> None:
    """A kernel of a few kilobytes, and as many positions: their products are not few."""
    x, weight = np.zeros((1, 1, 9_000)), np.zeros((1, 1, 8_000))
    assert result_elements("conv_transpose", {"x": x, "weight": weight}) > 9_000 * 8_000


def test_values_that_are_freed_do_not_count(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (1, 1, 4, 4))
    program.const("reps", [1, 1, 800, 800], "INT32")
    program.const("axes", [0, 1, 2, 3], "INT32")
    program.const("yes", True, "BOOL")
    for i in range(20):
        call(program, "tile", f"wide_{i}", (None,) * 4, x="x" if i == 0 else f"y{i - 1}",
             reps="reps")  # fmt: skip
        call(program, "reduce_max", f"y{i}", (None,) * 4, x=f"wide_{i}", axes="axes",
             keep_dims="yes")  # fmt: skip
    program.output("y19")
    session = Session(read_model(program.save(tmp_path)), budget=Budget(MEMORY))
    assert session.predict(X)["y19"].item() == 1


def test_loops_are_counted(tmp_path: Path) -> None:
    session = Session(read_model(endless().save(tmp_path)), budget=Budget(MEMORY, turns=100))
    with pytest.raises(BudgetError, match=r"while_loop 'i_out' .* after 100 turns"):
        session.predict(X)
    with pytest.raises(BudgetError, match=r"after 200 turns"):
        session.predict_all([X, X])


def test_a_shape_that_is_computed_is_looked_at_in_every_run(tmp_path: Path) -> None:
    """The first run is small; the second has inputs of the same shape, and a huge result."""
    program = Program()
    program.input("x", (1,), "INT32", kind=131104)
    program.const("one", 1.0, "FLOAT32")
    call(program, "fill", "y", (None,), shape="x", value="one")
    program.output("y")
    session = Session(read_model(program.save(tmp_path)), budget=Budget(MEMORY))
    assert session.predict({"x": np.int32([3])})["y"].tolist() == [1, 1, 1]
    with pytest.raises(BudgetError, match="fill 'y' of 4 GB"):
        session.predict({"x": np.int32([10**9])})


def test_other_shapes_are_looked_at_again(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (1, 1), ranges=((1, 1), (1, 100_000)))
    program.const("flat", [-1, 1], "INT32")
    call(program, "reshape", "column", (None, 1), x="x", shape="flat")
    call(program, "add", "y", (None, None), x="x", y="column")
    program.output("y")
    session = Session(read_model(program.save(tmp_path)), budget=Budget(MEMORY))
    for _ in range(2):
        assert session.predict({"x": np.ones((1, 2), np.float32)})["y"].shape == (2, 2)
    with pytest.raises(BudgetError, match="add 'y' of 10 GB"):
        session.predict({"x": np.ones((1, 50_000), np.float32)})


def test_the_process_has_a_budget(tmp_path: Path) -> None:
    package = fill().save(tmp_path)
    with process_budget(memory=10**6), pytest.raises(BudgetError, match="budget of 1 MB"):
        Session(read_model(package)).predict(X)
    assert current_budget().memory != 10**6


@pytest.mark.parametrize("arguments", [["run"], ["golden", "record", "--out=y.safetensors"]])
def test_commands_refuse_with_one_sentence(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    package = fill().save(tmp_path)
    np.save(tmp_path / "x.npy", X["x"])
    inputs = [f"--input=x={tmp_path}/x.npy"] if arguments == ["run"] else []
    assert main([*arguments, str(package), "--memory", "8 GB", *inputs]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("fill 'y' of 120 GB, over the budget of 8 GB; raise --ane-memory.")


PEAK = """
import sys
import numpy as np
from pathlib import Path
from pytest_ane.cli import main
from pytest_ane.mlprogram.errors import BudgetError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.budget import Budget
refused = 0
for package in sys.argv[1:]:
    try:
        session = Session(read_model(Path(package)), budget=Budget(100_000_000, seconds=0.3))
        session.predict({"x": np.ones((1, 1, 4, 4), np.float32)})
    except BudgetError:
        refused += 1
lines = Path("/proc/self/status").read_text().splitlines()
print(refused, next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
"""
