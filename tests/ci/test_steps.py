"""The `run:` steps of the workflow and the action, run as they stand: green, and every red."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.ci.repository import AS_IT_IS, CONTEXT, calls, clone, commit, fakes, git, machine
from tests.ci.runner import Done, Runner
from tests.plugin.projects import make_packages

MANIFEST = """\
[models.own.shard.good]
artifact = "good.mlpackage"
reference = "reference.mlpackage"
"""


@dataclass(frozen=True)
class Project:
    """A repository whose check is green, to be spoilt."""

    path: Path
    packages: dict[str, Path]

    def package(self, name: str) -> None:
        shutil.rmtree(self.path / "good.mlpackage")
        shutil.copytree(self.packages[name], self.path / "good.mlpackage")

    def alone(self, name: str) -> None:
        """Another package, and no reference."""
        self.package(name)
        text = MANIFEST.replace("reference.mlpackage", "none")
        (self.path / "shards.toml").write_text(text)

    def claimed(self, name: str) -> None:
        """Another package, said to be of 4-bit palettes."""
        self.package(name)
        claim = '[models.own.shard.good.compression]\nmethod = "palettize"\nnbits = 4\n'
        (self.path / "shards.toml").write_text(MANIFEST + claim)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def project(tmp_path: Path, packages: dict[str, Path]) -> Project:
    (tmp_path / "shards.toml").write_text(MANIFEST)
    shutil.copytree(packages["good"], tmp_path / "good.mlpackage")
    shutil.copytree(packages["float32"], tmp_path / "reference.mlpackage")
    return Project(tmp_path, packages)


def check(project: Project, **inputs: str) -> tuple[Runner, Done]:
    """Run the job that measures."""
    runner = Runner(project.path, CONTEXT, path=(Path(sys.executable).parent,))
    done = runner.job("measure", AS_IT_IS | inputs)
    assert [step.name for step in done] == ["Gates"]
    return runner, done[0]


@pytest.mark.heavy
def test_green(project: Project) -> None:
    runner, done = check(project)
    assert done.code == 0, done.output
    assert "::error" not in done.output
    assert "::notice title=ane gates::ane gates: 1 warned, 2 passed (ane: all " in done.output
    assert runner.summary.startswith(
        "## ane gates: 1 warned, 2 passed\n\n`ane: all · shards 1 of 1 "
    )
    cases = list(ElementTree.parse(project.path / "gates.xml").iter("testcase"))
    assert len(cases) == 3
    assert (project.path / ".ane-cache").is_dir()
    kept = ["actions/checkout", "actions/setup-python", "actions/cache", "actions/upload-artifact"]
    assert [name.partition("@")[0] for name in runner.used] == kept


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("spoil", "title", "says"),
    [
        (lambda p: p.package("other"), "fidelity failed", "below min-cosine = 0.97"),
        (lambda p: p.alone("nan"), "fidelity failed", "give NaN or infinite values"),
        (lambda p: p.package("ineligible"), "placement failed", "tangent"),
        (lambda p: p.claimed("weightless"), "compression unproven", "there was nothing to check"),
        (
            lambda p: shutil.rmtree(p.path / "reference.mlpackage"),
            "fidelity error",
            "no such folder",
        ),
    ],
)
def test_red(spoil: Callable[[Project], object], title: str, says: str, project: Project) -> None:
    """`title` is gate and status of the annotation."""
    spoil(project)
    runner, done = check(project, arguments="")
    assert done.code == 1, done.output
    errors = [line for line in done.output.splitlines() if line.startswith("::error ")]
    place = f"file=shards.toml,line=1,title=own%3Agood {title}::"
    assert any(place in line and says in line for line in errors), done.output
    assert f"- **own\\:good** {title.split()[0]}: " in runner.summary
    assert says in runner.summary.replace("\\", "")
    # The report is kept of a red run as well.
    assert runner.used[-1].startswith("actions/upload-artifact")
    assert (project.path / "gates.xml").is_file()


@pytest.mark.heavy
def test_a_manifest_that_cannot_be_read_is_red(project: Project) -> None:
    (project.path / "shards.toml").write_text("[models\n")
    _, done = check(project)
    assert done.code == 4
    assert "shards.toml: not valid TOML" in done.output


@pytest.mark.heavy
def test_the_installation_is_its_own_environment(project: Project, tmp_path: Path) -> None:
    """With tools that only note how they were called: nothing is downloaded here."""
    tools = fakes(tmp_path, "python3")
    runner = Runner(project.path, CONTEXT, path=(tools, Path(sys.executable).parent))
    done = runner.job("measure", {"install": "-r requirements.txt"})
    # No environment was made, so its pip is missing, and the gates do not run without it.
    assert [(step.name, step.code) for step in done] == [("Install", 127)]
    assert calls(tmp_path) == [f"python3 -m venv {project.path}/.runner/gates"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        ("", 0, "3 gates: 1 warned, 2 passed"),
        ("policy.unproven = 'allow'\n", 1, "changed: own.shard.good.policy.unproven fail -> allow"),
    ],
)
def test_the_required_check_judges_again(
    tmp_path: Path, packages: dict[str, Path], more: str, code: int, says: str
) -> None:
    """Both checkouts and the records lie where the workflow puts them."""
    repository, origin = clone(tmp_path, {"shards.toml": MANIFEST, ".gitignore": ".*\n*.json\n"})
    shutil.copytree(packages["good"], repository / "good.mlpackage")
    shutil.copytree(packages["float32"], repository / "reference.mlpackage")
    git(repository, "add", "--force", "good.mlpackage", "reference.mlpackage")
    commit(repository)
    work = tmp_path / "work"
    work.mkdir()
    git(tmp_path, "clone", "--quiet", str(origin), "work/base")
    (repository / "shards.toml").write_text(MANIFEST + more)
    commit(repository)
    git(tmp_path, "clone", "--quiet", str(origin), "work/head")
    path = (Path(sys.executable).parent,)
    Runner(work / "head", CONTEXT, path=path).job("measure", AS_IT_IS)
    (work / "measured").mkdir()
    shutil.copy(work / "head/run.jsonl", work / "measured/run.jsonl")
    (done,) = Runner(work, CONTEXT, path=path).some("verify", ["Verify"])
    assert done.code == code, done.output
    assert says in done.output


def test_what_was_recorded_is_signed_and_proposed(tmp_path: Path) -> None:
    repository, origin = cloned(tmp_path)
    old, new = (repository / f"evidence/own/L0{i}.placement.json" for i in range(2))
    old.write_text("{}\n")
    new.write_text("{}\n")
    done = steps(tmp_path, repository, "Find what is new", "Sign", "Propose", EVIDENCE="signed")
    assert [step.code for step in done] == [0, 0, 0], [step.output for step in done]
    signed = "cosign attest-blob --yes --key env://COSIGN_PRIVATE_KEY --predicate {0} --type {1} "
    kind = "https://github.com/pytest-ane/pytest-ane/record/v1"
    said = calls(tmp_path)
    assert said[:2] == [
        f"{signed.format(file, kind)}--bundle {file}.sigstore.json {file}"
        for file in ("evidence/own/L00.placement.json", "evidence/own/L01.placement.json")
    ]
    assert said[2].startswith("gh pr create --base feature --head evidence/42-1 --title ")
    changed = git(origin, "diff", "--name-only", "main", "evidence/42-1")
    assert changed.split() == ["evidence/own/L00.placement.json", "evidence/own/L01.placement.json"]


def test_what_was_there_before_is_not_signed_again(tmp_path: Path) -> None:
    repository, _ = cloned(tmp_path)
    (repository / "evidence/own/L00.placement.json").unlink()
    done = steps(tmp_path, repository, "Find what is new", "Sign", EVIDENCE="signed")
    assert [step.code for step in done] == [0, 0]
    assert calls(tmp_path) == []


@pytest.mark.parametrize(("new", "attested"), [(True, ["actions/attest@v4"]), (False, [])])
def test_only_what_is_new_is_attested(tmp_path: Path, new: bool, attested: list[str]) -> None:
    repository, _ = cloned(tmp_path)
    if new:
        (repository / "evidence/own/L01.placement.json").write_text("{}\n")
    runner = machine(tmp_path, repository, EVIDENCE="attested")
    assert [done.code for done in runner.some("sign", ["Find what is new", "Attest"])] == [0]
    assert runner.used == attested


def test_nothing_new_is_not_proposed(tmp_path: Path) -> None:
    repository, origin = cloned(tmp_path)
    (done,) = steps(tmp_path, repository, "Propose", EVIDENCE="")
    assert done.code == 0
    assert done.output == "::notice title=evidence::Everything was recorded already.\n"
    assert calls(tmp_path) == []
    assert git(origin, "branch", "--list", "evidence/*") == ""


@pytest.mark.parametrize(("code", "asked"), [(0, 2), (1, 1)])
def test_who_recorded_it_is_asked_of_every_file(tmp_path: Path, code: int, asked: int) -> None:
    repository, _ = cloned(tmp_path)
    (repository / "evidence/own/L 01.json").write_text("{}\n")
    (tmp_path / "work").mkdir()
    repository.rename(tmp_path / "work/head")
    (done,) = steps(
        tmp_path, tmp_path / "work", "Who recorded it", job="verify", code=code, EVIDENCE="attested"
    )
    assert done.code == code
    assert len(calls(tmp_path)) == asked
    assert calls(tmp_path)[0].startswith("gh attestation verify evidence/own/L")
    who = "--signer-workflow me/mine/.github/workflows/gates.yml --source-ref refs/heads/main"
    assert calls(tmp_path)[0].endswith(who)


@pytest.mark.parametrize(
    ("number", "ref", "asked"),
    [
        ("7", "refs/pull/7/merge", "7"),
        ("", "refs/heads/gh-readonly-queue/main/pr-12-0a1b2c3d", "12"),
        ("", "refs/heads/main", ""),
    ],
)
def test_the_label_of_a_review_names_the_commit(
    tmp_path: Path, number: str, ref: str, asked: str
) -> None:
    """In a merge queue, too, whose event has no pull request."""
    repository, _ = cloned(tmp_path)
    runner = machine(tmp_path, repository)
    runner.context = {**runner.context, "github.event.pull_request.number": number}
    runner.env = {**runner.env, "GITHUB_REF": ref}
    (done,) = runner.some("verify", ["Who reviewed it"])
    assert done.code == 0, done.output
    said = calls(tmp_path)
    assert [call.split()[2] for call in said] == [f"repos/me/mine/pulls/{asked}"] * bool(asked)
    assert all('"ane-reviewed-\\(.head.sha[:12])"' in call for call in said)


def cloned(tmp_path: Path) -> tuple[Path, Path]:
    """A clone with one evidence file, and its origin."""
    files = {"evidence/own/L00.placement.json": "{ }\n", ".gitignore": ".runner\n"}
    return clone(tmp_path, files)


def steps(
    tmp_path: Path, repository: Path, *names: str, job: str = "sign", code: int = 0, **env: str
) -> list[Done]:
    """Run some steps of a job."""
    return machine(tmp_path, repository, code=code, **env).some(job, names)
