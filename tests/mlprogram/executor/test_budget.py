"""Running a program is bounded: refused by name before memory is taken, or after its time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import BudgetError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.budget import (
    Budget,
    current_budget,
    process_budget,
    result_elements,
)
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.executor.hungry import PROGRAMS, endless, fill
from tests.mlprogram.executor.programs import written

MEMORY = 200_000_000
MOST = 300_000_000
X = {"x": np.ones((1, 1, 4, 4), np.float32)}
INPUT = "tensor<fp32, [1, 1, 4, 4]> x"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_small_program_that_takes_too_much_is_refused(tmp_path: Path, name: str) -> None:
    make, message = PROGRAMS[name]
    package = make().save(tmp_path)
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
    names = [f"part_{i}" for i in range(10)]
    size = "tensor<int32, [1]>([10000000])"
    parts = [f"tensor<fp32, [?]> {n} = fill(shape = {size}, value = fp32(1));" for n in names]
    joined = f"tensor<fp32, [?]> y = concat(values = ({', '.join(names)}), axis = int32(0));"
    body = "\n".join([*parts, joined])
    session = written(tmp_path / "m.mlmodelc", body, inputs=INPUT, budget=Budget(MEMORY))
    with pytest.raises(BudgetError, match=r"fill 'part_3' of 40 MB .* beside 120 MB of other"):
        session.predict(X)


def test_products_that_torch_lays_out_count() -> None:
    """A kernel of a few kilobytes, and as many positions: their products are not few."""
    x, weight = np.zeros((1, 1, 9_000)), np.zeros((1, 1, 8_000))
    assert result_elements("conv_transpose", {"x": x, "weight": weight}) > 9_000 * 8_000


def test_values_that_are_freed_do_not_count(tmp_path: Path) -> None:
    body, last = "", "x"
    for i in range(20):
        body += f"""tensor<fp32, [?, ?, ?, ?]> wide_{i} = tile(x = {last}, reps = reps);
            tensor<fp32, [?, ?, ?, ?]> y{i} = reduce_max(x = wide_{i}, axes = axes,
                                                         keep_dims = bool(true));"""
        last = f"y{i}"
    constants = """
        tensor<int32, [4]> reps = const()[val = tensor<int32, [4]>([1, 1, 800, 800])];
        tensor<int32, [4]> axes = const()[val = tensor<int32, [4]>([0, 1, 2, 3])];
    """
    folder, budget = tmp_path / "m.mlmodelc", Budget(MEMORY)
    session = written(folder, constants + body, last, INPUT, budget=budget)
    assert session.predict(X)[last].item() == 1


def test_loops_are_counted(tmp_path: Path) -> None:
    session = Session(read_model(endless().save(tmp_path)), budget=Budget(MEMORY, turns=100))
    with pytest.raises(BudgetError, match=r"while_loop 'y' .* after 100 turns"):
        session.predict(X)
    with pytest.raises(BudgetError, match=r"after 200 turns"):
        session.predict_all([X, X])


def test_a_shape_that_is_computed_is_looked_at_in_every_run(tmp_path: Path) -> None:
    """The first run is small; the second has inputs of the same shape, and a huge result."""
    body, inputs = "tensor<fp32, [?]> y = fill(shape = x, value = fp32(1));", "tensor<int32, [1]> x"
    session = written(tmp_path / "m.mlmodelc", body, inputs=inputs, budget=Budget(MEMORY))
    assert session.predict({"x": np.int32([3])})["y"].tolist() == [1, 1, 1]
    with pytest.raises(BudgetError, match="fill 'y' of 4 GB"):
        session.predict({"x": np.int32([10**9])})


def test_other_shapes_are_looked_at_again(tmp_path: Path) -> None:
    body = """
        tensor<fp32, [?, 1]> column = reshape(x = x, shape = tensor<int32, [2]>([-1, 1]));
        tensor<fp32, [?, ?]> y = add(x = x, y = column);
    """
    folder, budget = tmp_path / "m.mlmodelc", Budget(MEMORY)
    session = written(folder, body, inputs="tensor<fp32, [1, ?]> x", budget=budget)
    for _ in range(2):
        assert session.predict({"x": np.ones((1, 2), np.float32)})["y"].shape == (2, 2)
    with pytest.raises(BudgetError, match="add 'y' of 10 GB"):
        session.predict({"x": np.ones((1, 50_000), np.float32)})


def test_the_process_has_a_budget(tmp_path: Path) -> None:
    package = fill().save(tmp_path)
    with process_budget(memory=10**6), pytest.raises(BudgetError, match="budget of 1 MB"):
        Session(read_model(package)).predict(X)
    assert current_budget().memory != 10**6


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
