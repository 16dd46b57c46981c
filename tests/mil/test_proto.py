"""coremltools' definitions without coremltools, in either order; each order needs a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.mil.packages import doubling

READ = """
from pathlib import Path
from pytest_ane.mil import read_model
from pytest_ane.reference import Session
model = read_model(Path({package!r}))
assert Session(model) is not None
"""
REAL = """
import logging, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
import coremltools as ct
spec = ct.utils.load_spec({package!r})
assert spec.specificationVersion == 9
assert ct.proto.Model_pb2.Model is type(spec)
"""


def run(code: str, package: Path) -> None:
    program = code.format(package=str(package))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_reading_and_preparing_import_neither_coremltools_nor_torch(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    absent = "import sys\nassert not {{'coremltools', 'torch'}} & sys.modules.keys()\n"
    run(READ + absent, package)


def test_the_real_coremltools_can_be_imported_afterwards(tmp_path: Path) -> None:
    run(READ + REAL + READ, doubling().save(tmp_path))


def test_the_real_coremltools_can_have_been_imported_before(tmp_path: Path) -> None:
    run(REAL + READ, doubling().save(tmp_path))
