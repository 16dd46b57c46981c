"""`reference = "golden.safetensors"`: recorded by the command line, held against in a run."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from pytest_ane.cli import main
from tests.plugin.conftest import Project

X = np.ones((1, 8, 1, 4), np.float32)
HELD = '\n[models.mini.shard."{}"]\nreference = "golden/{}.safetensors"\n'


def record(project: Project, *arguments: object) -> int:
    """Run the command in the project's folder, with the workshop's cache."""
    cache = ["--ane-cache", str(project.workshop.cache)]
    return main(["golden", "record", *map(str, arguments), *cache])


def fidelity(project: Project, *options: str, shards: str = "all") -> pytest.RunResult:
    return project.gate("-k", "fidelity", "-rA", *options, shards=shards)


def test_a_family_s_shard(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.llama()
    assert record(project, "L01", "--out", "golden/L01.safetensors") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("golden/L01.safetensors: 9 probes, ")
    assert said[1] == "recorded from the float32 module of mini:L01"
    project.llama(HELD.format("L01", "L01"))
    result = fidelity(project, shards="L01")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gaussian T=9 #0 *", "captured counting T=5 *"])


def test_golden_tensors_of_another_shard_are_red(project: Project) -> None:
    project.llama()
    assert record(project, "L00", "--out", "golden/L00.safetensors") == 0
    result = fidelity(project.llama(HELD.format("L01", "L00")), shards="L01")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*live probes are below min-cosine = 0.97: *"])
    fidelity(project.llama(HELD.format("head.0", "L00")), shards="head.0").assert_outcomes(failed=1)


@pytest.mark.slow
def test_a_family_s_shard_as_a_package_runs_it(project: Project) -> None:
    """The built package itself, so that nothing differs at all."""
    project.llama().run("--ane-shards=L01", "-m", "gate", "-k", "fidelity", "--ane-cache=own")
    (package,) = (project.path / "own" / "artifacts").glob("*/*.mlpackage")
    assert record(project, "L01", "--package", package, "--out", "golden/L01.safetensors") == 0
    result = fidelity(project.llama(HELD.format("L01", "L01")), shards="L01")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["passed   mini:L01 * cosine 1.0000 *"])


def test_a_package(project: Project) -> None:
    good, other = project.workshop.packages["good"], project.workshop.packages["other"]
    assert record(project, good, "--out", "good.safetensors") == 0
    project.packages(good="good.safetensors", other="good.safetensors")
    result = fidelity(project)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["passed   own:good * cosine 1.0000 *"])
    result.stdout.fnmatch_lines(["FAILED   own:other *"])
    assert record(project, "own:other", "--package", other, "--out", "other.safetensors") == 0
    project.packages(other="other.safetensors")
    fidelity(project).assert_outcomes(passed=1)


def test_a_reference_that_cannot_be_had_is_an_error(project: Project) -> None:
    result = fidelity(project.packages(good="absent.safetensors"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*absent.safetensors: there are no golden tensors; *"])
    for tensors in (
        {"0.in.x": X, "0.out.projection": X * np.float32(np.nan)},
        {"0.in.x": X, "0.out.logits": X},
        {"0.in.x": X[:, :4], "0.out.projection": X},
    ):
        save_file(tensors, project.path / "g.safetensors")
        fidelity(project.packages(good="g.safetensors")).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("L00-L01", "--out", "a.safetensors"), "L00-L01 names 2 shards; record one at a time."),
        (("L09", "--out", "a.safetensors"), "--ane-shards: 'L09' matches no shard; "),
        (("L00", "--out", "a.txt"), "--out a.txt: golden tensors are a .safetensors or an .npz"),
        (("a.mlpackage", "--out", "a.safetensors"), "a.mlpackage"),
        (
            ("a.mlpackage", "--package", "b.mlpackage", "--out", "a.safetensors"),
            "--package is for a shard of the manifest; name one package.",
        ),
    ],
)
def test_what_cannot_be_recorded(
    project: Project,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    project.llama()
    assert record(project, *arguments) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not (project.path / "a.safetensors").exists()


def test_a_package_of_unknown_making_has_no_module(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.packages(good="none")
    assert record(project, "good", "--out", "a.safetensors") == 1
    assert "own:good: has no float32 module; name a package to run" in capsys.readouterr().err
