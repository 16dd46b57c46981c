"""`--ane-memory` and `--ane-time`: a program that takes too much fails its gate with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mlprogram.executor.hungry import endless, fill
from tests.plugin.conftest import Project


@pytest.mark.parametrize("how", ["option", "ini"])
def test_a_gate_refuses_what_takes_too_much_memory(
    project: Project, tmp_path: Path, how: str
) -> None:
    package = fill().save(tmp_path)
    options = ["--ane-memory=8 GB"] if how == "option" else ["-o", "ane_memory=8 GB"]
    result = project.run(f"--ane-package={package}", "-m", "gate", "-k", "fidelity", *options)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*over the budget of 8 GB; raise --ane-memory."])


def test_a_gate_ends_what_never_ends(project: Project, tmp_path: Path) -> None:
    package = endless().save(tmp_path)
    result = project.run(
        f"--ane-package={package}", "-m", "gate", "-k", "fidelity", "--ane-time=0.2 s"
    )
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*still running after 0.2 s*raise --ane-time."])
