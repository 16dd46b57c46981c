"""Whether there is a native Core ML."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_ane.backends.coreml import check_native, native
from pytest_ane.backends.coreml.machine import NAME, has_native
from pytest_ane.core.errors import BackendError
from pytest_ane.testing import Replayer, Script

away = pytest.mark.skipif(sys.platform == "darwin", reason="macOS has Core ML")


@away
def test_elsewhere_there_is_none() -> None:
    assert not has_native()
    with pytest.raises(BackendError, match=rf"no {NAME}\); use --ane-backend=cpu, or"):
        check_native()


def test_a_replayed_one_counts() -> None:
    with Replayer(Script()):
        check_native()


def test_one_that_cannot_be_loaded_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as one for another architecture."""
    import coremltools

    (tmp_path / "libcoremlpython.so").write_bytes(b"none")
    monkeypatch.setattr(coremltools, "__path__", [*coremltools.__path__, str(tmp_path)])
    monkeypatch.setattr(native, "has_native", lambda: True)
    with pytest.raises(BackendError, match=r"cannot be loaded \(.*\); install coremltools again"):
        native.coremltools()


def test_looking_for_it_imports_nothing(pytester: pytest.Pytester) -> None:
    code = (
        "import sys; from pytest_ane.backends.coreml.machine import has_native; has_native();"
        "print('coremltools' in sys.modules, 'torch' in sys.modules)"
    )
    assert pytester.runpython_c(code).outlines == ["False False"]
