"""Every pair through the gate: the wrong package is red or unproven, the right one green."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pytest_ane.gates.registry import GATES
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.project.project import Project, read_project
from tests.own_packages import functions, inputs, outputs, references, states  # noqa: F401
from tests.own_packages.subjects import SUBJECTS, Status, Subject, Variant

pytestmark = pytest.mark.slow
STATUSES: tuple[Status, ...] = ("failed", "unproven", "passed")
"""The worst first."""
ROWS = [(name, fault) for name, each in SUBJECTS.items() for fault in each.faults]


def test_the_table_is_as_large_as_it_says() -> None:
    assert len(ROWS) >= 60
    assert all(each.faults for each in SUBJECTS.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest and packages, saved when they are first used."""
    path = tmp_path_factory.mktemp("own")
    _write(path)
    return path


def _write(path: Path) -> None:
    basis = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    np.save(path / "basis.npy", basis)
    np.savez(path / "basis.npz", basis=basis)
    save_file({"basis": basis}, path / "basis.safetensors")
    for each in SUBJECTS.values():
        each.prepare(each, path)
        # The names of functions are read with the manifest.
        for fault in ("", *each.faults) if each.functions else ():
            _save(each, fault, path)
    (path / "shards.toml").write_text("".join(map(_model, SUBJECTS.values())))


def _model(each: Subject) -> str:
    shards = ["right", *map(_slug, each.faults)]
    lines = [f"[models.{each.name}]", each.model.format(shards=", ".join(shards))]
    for name, table in each.inputs.items():
        lines += [f"[models.{each.name}.shard.'*'.inputs.{name}]", table]
    for shard in shards:
        package = f"{each.name}/{shard}.mlpackage"
        lines += [f"[models.{each.name}.shard.{shard}]", f'artifact = "{package}"']
        reference = each.reference if each.model else f"{each.name}/{each.reference}"
        lines += [f'reference = "{reference}"', each.shard.format(package=package)]
    return "\n".join(lines) + "\n"


def _slug(fault: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in fault)


@pytest.fixture(scope="module")
def project(folder: Path) -> Project:
    return read_project(folder / "shards.toml", folder / "cache")


def _save(each: Subject, fault: str, folder: Path) -> None:
    packages = {
        "reference": Variant(each),
        # Of several functions one may be right, and is not to be the reference itself.
        _slug(fault) or "right": Variant(
            each, fault, 0.0 if fault and not each.functions else each.noise
        ),
    }
    (folder / each.name).mkdir(exist_ok=True)
    for stem, variant in packages.items():
        path = folder / each.name / f"{stem}.mlpackage"
        if not path.exists():
            each.save(variant, path)


def verdict(project: Project, name: str, fault: str = "") -> tuple[Status, str]:
    _save(SUBJECTS[name], fault, project.manifest.path.parent)
    subject = f"{name}:{_slug(fault) or 'right'}"
    gate, statuses, reasons = GATES["fidelity"], set(), []
    shards = [s for s in project.shards if s.qualified.partition("[")[0] == subject]
    for shard in shards:
        try:
            measurement = gate.measure(project.open_shard(shard))
        except AneError as error:
            return "failed", str(error)
        judged = gate.judge(measurement, shard.policy.fidelity, shard)
        statuses.add(judged.status)
        reasons += [finding.reason for finding in judged.reasons]
    assert len(shards) == max(1, len(SUBJECTS[name].functions) - ("missing" in fault))
    return next(s for s in STATUSES if s in statuses), " | ".join(reasons)


@pytest.mark.drawn
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_right_package_is_green(project: Project, name: str) -> None:
    status, reasons = verdict(project, name)
    assert status == SUBJECTS[name].right, reasons


@pytest.mark.drawn
@pytest.mark.parametrize(("name", "fault"), ROWS, ids=["-".join(map(_slug, r)) for r in ROWS])
def test_a_wrong_package_is_not(project: Project, name: str, fault: str) -> None:
    status, reasons = verdict(project, name, fault)
    assert status == SUBJECTS[name].faults[fault], reasons
    assert reasons
