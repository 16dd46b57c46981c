"""coremltools without its noise."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings

import pytest

from pytest_ane.make.coremltools_quiet import converter_notes

LOGGER = logging.getLogger("coremltools")


def test_warnings_are_collected_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with converter_notes() as notes:
        LOGGER.warning("Cannot perform palettization on %s. Skipped this op.", "w")
        LOGGER.debug("not a warning")
        print("Running passes: 50%", file=sys.stderr)
        warnings.warn("remark", stacklevel=1)
    assert notes == ["Cannot perform palettization on w. Skipped this op."]
    assert capsys.readouterr().err == ""


def test_afterwards_all_is_as_before(caplog: pytest.LogCaptureFixture) -> None:
    before = (LOGGER.handlers[:], LOGGER.propagate, sys.stderr)
    with pytest.raises(ZeroDivisionError), converter_notes():
        raise ZeroDivisionError
    assert (LOGGER.handlers, LOGGER.propagate, sys.stderr) == before
    LOGGER.warning("shown again")
    assert caplog.messages == ["shown again"]


@pytest.mark.slow
def test_importing_coremltools_says_nothing() -> None:
    """And what came with it is no longer looked through for garbage; what comes later is."""
    code = (
        "import gc, sys\n"
        "from pytest_ane.make.coremltools_quiet import import_coremltools\n"
        "import_coremltools()\n"
        "frozen = gc.get_freeze_count()\n"
        "assert frozen > 100_000 > len(gc.get_objects()), (frozen, len(gc.get_objects()))\n"
        "later = [[] for _ in range(1000)]\n"
        "import_coremltools()\n"
        "assert gc.get_freeze_count() <= frozen\n"
        "assert not {'transformers', 'sklearn'} & sys.modules.keys()\n"
        "import transformers, sklearn\n"
        "import coremltools\n"
        "assert 'coremltools.optimize.torch' not in sys.modules\n"
        "assert coremltools.optimize.torch.palettization.DKMPalettizer\n"
        "from coremltools.optimize.torch.quantization import LinearQuantizer\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
