"""Test files that predict with coremltools, run as they are, on any machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADER = "coremltools: predictions by pytest-ane's CPU executor (not Core ML)"
ROUNDING = """
    import coremltools as ct
    import numpy as np
    from coremltools.converters.mil import Builder as mb

    def test_half_a_step():
        @mb.program(input_specs=[mb.TensorSpec((1, 3))], opset_version=ct.target.iOS17)
        def program(x):
            return mb.add(x=x, y=1.0, name="y")

        model = ct.convert(program)
        assert model.predict({"x": np.full((1, 3), 2048.0)})["y"].tolist() == [[2050] * 3]
"""
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="macOS has Core ML of its own")
INSTALLED = """
    import sys

    from pytest_ane.mac import predict

    def test_installed():
        assert predict.installed()
        assert "coremltools" not in sys.modules
"""
AFTERWARDS = """
import sys

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb

@mb.program(input_specs=[mb.TensorSpec((3,))], opset_version=ct.target.iOS17)
def program(x):
    return mb.mul(x=x, y=2.0, name="y")

from pytest_ane.mac import predict

assert not ct.utils._is_macos()
assert predict.install()
native = sys.modules["coremltools.libcoremlpython"]
assert predict.install()
assert sys.modules["coremltools.libcoremlpython"] is native is ct.libcoremlpython
assert ct.utils._is_macos()
print(ct.convert(program).predict({"x": np.ones(3)})["y"].tolist())
"""


@pytest.mark.drawn
@pytest.mark.heavy
def test_what_model_files_rely_on_and_the_examples() -> None:
    """One process for `served.py` and `examples/predict`: importing coremltools takes seconds."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_ane.mac.predict", "--tb=short",
         "-c", str(ROOT / "examples" / "pytest.ini"), "-p", "no:cacheprovider",
         str(Path(__file__).with_name("served.py")), str(ROOT / "examples" / "predict")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-6000:]
    assert run.stdout.count(HEADER) == 1
    assert " skipped" not in run.stdout


def test_without_the_plugin_nothing_is_changed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            assert "coremltools.libcoremlpython" not in sys.modules
            assert not [f for f in sys.meta_path if "pytest_ane" in type(f).__module__]
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*predictions by*")


@pytest.mark.drawn(2)
@pytest.mark.slow
def test_installed_in_each_worker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(INSTALLED)
    result = pytester.runpytest_subprocess("-p", "pytest_ane.mac.predict", "-n", "1")
    result.assert_outcomes(passed=1)
    assert result.stdout.str().count(HEADER) == 1


@pytest.mark.drawn(1)
@pytest.mark.slow
def test_installed_after_coremltools_was_imported_and_twice() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AFTERWARDS],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.splitlines()[-1] == "[2.0, 2.0, 2.0]"


@pytest.mark.drawn(0)
@pytest.mark.slow
def test_the_anes_arithmetic(pytester: pytest.Pytester) -> None:
    """2048 + 1 rounds away from zero on the ANE, to even as typed; by an option or an ini file."""
    pytester.makepyfile(ROUNDING)
    option = pytester.runpytest_subprocess("-p", "pytest_ane.mac.predict", "--ane-arithmetic=ane")
    pytester.makeini("[pytest]\nane_arithmetic = ane\n")
    for result in (option, pytester.runpytest_subprocess("-p", "pytest_ane.mac.predict", "-q")):
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(
            ["*coremltools: predictions by pytest-ane's CPU executor as simulated ANE (h16+) (*",
             "coremltools: simulated ANE (h16+): operations by rules *% recorded*"],
            consecutive=False,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("h13", "arithmetic 'h13': h13 to h15 (M1 to M3) sum in other ways than M4 and later*"),
        (
            "typed,ane",
            "MLModel.predict gives the numbers of one arithmetic; name 'typed' or 'ane'.",
        ),
    ],
)
def test_arithmetics_that_are_refused(pytester: pytest.Pytester, word: str, says: str) -> None:
    result = pytester.runpytest_subprocess(
        "-p", "pytest_ane.mac.predict", f"--ane-arithmetic={word}"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --ane-arithmetic*: {says}"])
