"""`pytest-ane doctor`: what it looks at, and what it calls a problem."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ane.mac.testing import INTEL, Mac, Replayer, Script
from pytest_ane.make.disk import PlanCache
from tests.permissions import permitted, tree
from tests.plugin.projects import LLAMA, make_llama
from tests.tools.conftest import AsJson, Says

OWN = '[models.own.shard.{name}]\nartifact = "{name}.mlpackage"\nreference = "none"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def doctor(says: Says) -> Says:
    return partial(says, "doctor", "--ane-cache=cache")


def line(lines: list[str], start: str) -> str:
    (found,) = [line for line in lines if line.startswith(f"{start}: ")]
    return found.removeprefix(f"{start}: ")


def test_a_machine_without_a_manifest(
    doctor: Says, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = doctor()
    for name in ("pytest-ane", "python", "coremltools", "torch", "numpy", "pytest-xdist"):
        assert f"{name} " in line(out, "versions")
    assert "builds at once" in line(out, "machine")
    assert "OMP_NUM_THREADS 1" in line(out, "threads")
    assert line(out, "cache").startswith(f"{folder / 'cache'}, 0 entries, 0.0 MB, ")
    assert line(out, "temporary files").endswith(" free")
    assert line(out, "manifest").startswith("no shards.toml here")
    assert out[-1] == "no problems found"


@pytest.mark.parametrize(
    ("mac", "said"),
    [
        (
            Mac("Apple M2", "26.1", "25B78", compiler="3500.32.1"),
            "Apple M2, macOS 26.1 (25B78), Mac16,5, compiler coremlcompiler 3500.32.1, devices "
            "CPU, GPU, ANE (16 cores)",
        ),
        (
            INTEL,
            "devices CPU, GPU, which is a Mac for which Core ML lists no Neural Engine "
            "(Macmini8,1) and proves nothing of the ANE",
        ),
    ],
    ids=["ane", "intel"],
)
def test_the_mac_is_named_where_there_is_one(mac: Mac, said: str, doctor: Says) -> None:
    with Replayer(Script(mac)):
        out = doctor()
    assert line(out, "Core ML").endswith(said)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has Core ML")
def test_elsewhere_there_is_no_core_ml(doctor: Says, folder: Path) -> None:
    assert line(doctor(), "Core ML").startswith("none here; ")


def test_a_package_that_is_not_installed(doctor: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ane.tools.doctor._NEEDED", ("numpy", "no-such-package"))
    last = doctor(code=1)[-1]
    assert last == "  - no-such-package is not installed; run: pip install pytest-ane"


def test_models_built_and_to_build(doctor: Says, folder: Path) -> None:
    make_llama(folder / "mini.gguf")
    (folder / "a.mlpackage").mkdir()
    text = LLAMA.format(source="mini.gguf").replace("max-tokens", 'canary = "L01"\nmax-tokens', 1)
    (folder / "shards.toml").write_text(f"{text}\n{OWN.format(name='a')}")
    out = doctor()
    assert line(out, "manifest") == "shards.toml, models 2"
    assert line(out, "mini").startswith("4 shards, canary L01, 0 built, 4 to build, cache ")
    assert "needed" not in line(out, "mini")
    assert line(out, "own") == "1 shard"
    assert list((folder / "cache" / "artifacts").iterdir()) == []


def test_a_builder_in_the_manifest_s_folder(
    doctor: Says, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in the installed script, which has no current folder among its modules.
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(folder))])
    (folder / "doctor_blocks.py").write_text("def build(shard): ...\n")
    (folder / "shards.toml").write_text(
        '[models.mine]\nbuilder = "doctor_blocks:build"\nshards = "L00-L01"\nmax-tokens = 4\n'
    )
    assert line(doctor(), "mine").startswith("2 shards, 0 built, 2 to build, ")


def test_a_model_that_its_family_refuses_is_one_problem(doctor: Says, folder: Path) -> None:
    whole = make_llama(folder / "mini.gguf").read_bytes()
    refused = whole.replace(b"llama.context_length", b"llama.clamp_anything")
    (folder / "mini.gguf").write_bytes(refused)
    (folder / "shards.toml").write_text(LLAMA.format(source="mini.gguf"))
    *out, count, problem = doctor(code=1)
    assert line(out, "mini") == "4 shards, cannot be used"
    assert count == "pytest-ane: problems: 1"
    assert "mini.gguf: its metadata has llama.clamp_anything 64, which family 'll" in problem


def test_every_problem_is_a_line(doctor: Says, folder: Path) -> None:
    (folder / "shards.toml").write_text(LLAMA.format(source="gone.gguf") + OWN.format(name="a"))
    *out, count, first, second = doctor(code=1)
    assert "cannot be used" in line(out, "mini")
    assert count == "pytest-ane: problems: 2"
    assert first.startswith(f"  - mini: {folder}/gone.gguf: no such file")
    assert second.startswith(f"  - own:a: {folder}/a.mlpackage does not exist")
    assert "no problems found" not in out


def test_as_json(as_json: AsJson, folder: Path) -> None:
    (folder / "shards.toml").write_text(OWN.format(name="a"))
    found = as_json("doctor", "--cache=cache", code=1)
    assert found["checks"]["manifest"] == "shards.toml, models 1"
    assert found["models"] == {"own": "1 shard"}
    (problem,) = found["problems"]
    assert problem in found["error"]


def test_a_disk_that_is_too_small(
    doctor: Says, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_llama(folder / "mini.gguf")
    budget = '\n[models.mini.policy.compression]\nmax-bytes = "1 GB"\n'
    (folder / "shards.toml").write_text(LLAMA.format(source="mini.gguf") + budget)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**9))
    assert doctor(code=1)[-1].startswith("  - mini: the disk is too small: cache ")


@pytest.mark.parametrize(
    ("text", "said"), [(None, "no.toml does not exist"), ("[models", "no.toml: not valid TOML")]
)
def test_a_named_manifest_has_to_be_good(
    doctor: Says, folder: Path, text: str | None, said: str
) -> None:
    if text is not None:
        (folder / "no.toml").write_text(text)
    out = doctor("--ane-manifest=no.toml", code=1)
    assert line(out, "manifest") == "no.toml, which cannot be used"
    assert out[-1].startswith(f"  - {said}")


def test_a_cache_that_cannot_be_written_or_only_read(doctor: Says, folder: Path) -> None:
    doctor()
    with permitted(0o555, *tree(folder / "cache")):
        out = doctor(code=1)
    assert "cannot be written (Permission denied): what it holds is used" in out[-1]
    assert line(out, "cache").startswith(f"{folder / 'cache'}, 0 entries, ")
    shutil.rmtree(folder / "cache")
    (folder / "cache").touch()
    assert "cannot be written" in doctor(code=1)[-1]


def test_plans_of_core_ml_are_listed(
    doctor: Says, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        PlanCache(folder / "24G84", 86 * 10**9, True),
        PlanCache(folder / "25B78", 10**9, False),
    ]
    monkeypatch.setattr("pytest_ane.tools.doctor.plan_caches", lambda: found)
    out = doctor()
    assert line(out, "Core ML plan caches").startswith("87.0 GB, 86.0 GB of them of another macOS")
    assert f"  86.0 GB stale  {folder / '24G84'}" in out
    assert f"  1.0 GB  {folder / '25B78'}" in out


def test_a_policy_that_no_run_can_ask(doctor: Says, folder: Path) -> None:
    text = LLAMA.format(source=make_llama(folder / "mini.gguf"))
    (folder / "shards.toml").write_text(text.replace("L00-L01, head.0-head.1", "L00-L01"))
    said = doctor(code=1)
    assert any("mini: policy.behaviour is never asked" in problem for problem in said)
