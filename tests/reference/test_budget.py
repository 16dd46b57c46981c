"""Running a program is bounded: refused by name before memory is taken, or after its time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.core.errors import BudgetError
from pytest_ane.mil import read_model
from pytest_ane.reference import Session
from pytest_ane.reference.budget import Budget
from tests.mil.packages import model_file
from tests.reference.hungry import PROGRAMS

MEMORY = 200_000_000
MOST = 300_000_000
X = {"x": np.ones((1, 1, 4, 4), np.float32)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_small_program_that_takes_too_much_is_refused(tmp_path: Path, name: str) -> None:
    make, message = PROGRAMS[name]
    package = make().save(tmp_path)
    assert model_file(package).stat().st_size < 5_000
    budget = Budget(MEMORY, seconds=0.3 if name == "endless" else 5)
    start = time.monotonic()
    with pytest.raises(BudgetError) as error:
        Session(read_model(package), budget=budget).predict(X)
    assert time.monotonic() - start < 2
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


PEAK = """
import sys
import numpy as np
from pathlib import Path
from pytest_ane.core.errors import BudgetError
from pytest_ane.mil import read_model
from pytest_ane.reference import Session
from pytest_ane.reference.budget import Budget
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
