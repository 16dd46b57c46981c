"""Pull requests that turn a red run green, and what `verify-run` says of them.

None of them touches the manifest, keys, evidence or gates, which a reviewer looks at.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pytest_ane
from pytest_ane.gates.fidelity import FIDELITY
from pytest_ane.gates.verdict import Verdict
from pytest_ane.mac._replay import Replayer
from pytest_ane.mac._script import Script
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.plugin._workspace import Workspace
from pytest_ane.records.audit import Audit, Auditor, base_of
from pytest_ane.records.record import sealed
from pytest_ane.records.run import read_run
from tests.ci.repository import git
from tests.plugin.conftest import Project, genuine

__all__ = ["genuine"]
Edit = Callable[[Path], object]
CONFTEST = """\
import pytest
class Plugin:
{}
def pytest_configure(config):
    config.pluginmanager.register(Plugin())
"""

BUILDER = """
[models.mine]
builder = "small_block:build"
shards = "ffn.0"
max-tokens = 4
"""
BLOCK = """
import torch
from pytest_ane.models.families import Conversion, Port

def build(shard):
    torch.manual_seed(1)
    x = Port("x", (1, 16, "T", 1))
    return Conversion(torch.nn.Conv2d(16, 16, 1), (x,), (Port("y", x.shape),))
"""


class Checkout:
    """A repository with a right package and its reference, and runs of its gates.

    A pull request puts other weights in its place.
    """

    def __init__(self, project: Project) -> None:
        self.project, self.path = project, project.path
        shutil.copytree(project.workshop.packages["good"], self.path / "good.mlpackage")
        shutil.copytree(project.workshop.packages["float32"], self.path / "float32.mlpackage")
        project.manifest(
            '[models.own.shard.good]\nartifact = "good.mlpackage"\n'
            'reference = "float32.mlpackage"\n'
        )
        git(self.path, "init", "--quiet", "--initial-branch=main", ".")
        (self.path / ".gitignore").write_text("*.jsonl\n__pycache__\n.pytest_cache\n.hypothesis\n")
        self.commit("base")
        git(self.path, "tag", "base")

    def commit(self, message: str) -> None:
        git(self.path, "add", "--force", "good.mlpackage", "float32.mlpackage")
        git(self.path, "add", ".")
        who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        git(self.path, *who, "commit", "--quiet", "--allow-empty", f"--message={message}")

    def spoil(self) -> None:
        """Put a wrong package in the right one's place, and the right one beside it."""
        (self.path / "good.mlpackage").rename(self.path / "right.mlpackage")
        shutil.copytree(self.project.workshop.packages["other"], self.path / "good.mlpackage")

    def run(self, *options: str) -> pytest.RunResult:
        return self.project.gate("--ane-report=run.jsonl", *options)

    def audit(self, *, reviewed: bool = False, recheck: float = 0) -> Audit:
        run = read_run(self.path / "run.jsonl")
        with base_of("base", self.path / "shards.toml") as base:
            cache = self.project.workshop.cache
            return Auditor(run, base, cache=cache, reviewed=reviewed, recheck=recheck).audit()

    def complaints(self, *, recheck: float = 0) -> list[str]:
        """Everything that makes the check red; a run that cannot be read is one, too."""
        try:
            audit = self.audit(recheck=recheck)
        except AneError as error:
            return [str(error)]
        verdicts = (v for v in audit.verdicts if v.status != "passed")
        return [*audit.problems, *(f"{v.gate}: {v.findings[0].reason}" for v in verdicts)]


@pytest.fixture
def checkout(project: Project) -> Checkout:
    return Checkout(project)


def write(name: str, text: str) -> Edit:
    def edit(path: Path) -> None:
        (path / name).write_text(text)

    return edit


def hook(body: str) -> Edit:
    return write("conftest.py", CONFTEST.format(body))


def on_import(text: str) -> Edit:
    return write("conftest.py", text)


GREEN = """\
import pytest_ane.gates.fidelity as f
from pytest_ane.gates.verdict import Verdict
type(f.FIDELITY).judge = lambda self, m, p, s: Verdict("fidelity", s.qualified)
"""
PULL_REQUESTS: dict[str, Edit] = {
    "pytest.ini deselects": write("pytest.ini", "[pytest]\naddopts = -k 'not fidelity'\n"),
    "pyproject.toml deselects": write(
        "pyproject.toml", "[tool.pytest.ini_options]\naddopts = '--deselect gates'\n"
    ),
    "tox.ini collects only": write("tox.ini", "[pytest]\naddopts = --collect-only\n"),
    "conftest.py exits with 0": hook(
        "    def pytest_runtest_setup(self, item):\n        pytest.exit('done', 0)\n"
    ),
    "conftest.py sets the exit code": hook(
        "    @pytest.hookimpl(trylast=True)\n    def pytest_sessionfinish(self, session):\n"
        "        session.exitstatus = 0\n"
    ),
    "conftest.py makes failures pass": hook(
        "    @pytest.hookimpl(wrapper=True, tryfirst=True)\n"
        "    def pytest_runtest_makereport(self, item, call):\n"
        "        report = yield\n        report.outcome = 'passed'\n        return report\n"
    ),
    "conftest.py drops tests": hook(
        "    def pytest_collection_modifyitems(self, items):\n        items.clear()\n"
    ),
    "conftest.py skips tests": hook(
        "    def pytest_collection_modifyitems(self, items):\n        for item in items:\n"
        "            item.add_marker(pytest.mark.skip('later'))\n"
    ),
    "conftest.py calls no test": hook(
        "    @pytest.hookimpl(tryfirst=True)\n    def pytest_pyfunc_call(self, pyfuncitem):\n"
        "        return True\n"
    ),
    "a module changes the judge": on_import(GREEN),
    "a module allows what is unproven": on_import(
        "from pytest_ane.plugin._workspace import Workspace\n"
        "Workspace.allows_unproven = lambda self, subject: True\n"
        "from pytest_ane.gates.verdict import Verdict\nVerdict.status = 'passed'\n"
    ),
    "a module lowers the policy": on_import(
        "from pytest_ane.manifest.policy import FidelityPolicy\n"
        "from pytest_ane.gates.fidelity import FIDELITY\n"
        "type(FIDELITY).policy = lambda self, policy: FidelityPolicy(min_cosine=0.01, "
        "max_non_finite=0.9)\n"
    ),
    "a module measures another package": on_import(
        "from pytest_ane.gates.fidelity import FIDELITY\nreal = type(FIDELITY).measure\n"
        "class Other:\n    def __init__(self, context): self.context = context\n"
        "    def __getattr__(self, name): return getattr(self.context, name)\n"
        "    @property\n    def artifact(self):\n        from dataclasses import replace\n"
        "        from pathlib import Path\n"
        "        path = Path(__file__).with_name('right.mlpackage')\n"
        "        return replace(self.context.artifact, path=path)\n"
        "    def budget(self):\n"
        "        return self.context.budget.func(self.context.shard, self.artifact)\n"
        "type(FIDELITY).measure = lambda self, context: real(self, Other(context))\n"
    ),
}


MEASURED_AGAIN = ("a module measures another package",)


def test_the_right_package_passes(checkout: Checkout) -> None:
    assert checkout.run().ret == 0
    audit = checkout.audit(recheck=5)
    assert not audit.problems
    assert not audit.changes
    assert [v.status for v in audit.verdicts] == ["passed"] * 3
    assert audit.rechecked == ("fidelity own:good",)


def test_the_wrong_package_fails(checkout: Checkout) -> None:
    checkout.spoil()
    checkout.commit("change")
    assert checkout.run().ret == 1
    assert any("fidelity" in line for line in checkout.complaints())


@pytest.mark.drawn
@pytest.mark.parametrize("name", PULL_REQUESTS)
def test_a_pull_request_cannot_talk_it_green(
    checkout: Checkout, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.spoil()
    PULL_REQUESTS[name](checkout.path)
    checkout.commit(name)
    with unchanged(monkeypatch):
        checkout.run()
    # Only what measures something else has to be measured again.
    complaints = checkout.complaints(recheck=100 if name in MEASURED_AGAIN else 0)
    assert any(line.startswith("fidelity: ") or "cannot be read" in line for line in complaints)
    if name in MEASURED_AGAIN:
        assert not checkout.complaints()


@contextmanager
def unchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a module of the pull request changes lasts as long as its process."""
    with monkeypatch.context() as patch:
        for kind, name in (
            (type(FIDELITY), "judge"),
            (type(FIDELITY), "measure"),
            (type(FIDELITY), "policy"),
            (Workspace, "allows_unproven"),
            (Verdict, "status"),
        ):
            patch.setattr(kind, name, getattr(kind, name))
        yield


Data = dict[str, Any]


def edited(checkout: Checkout, change: Callable[[list[Data]], None]) -> None:
    """Write the run anew after a change, with digests that fit."""
    file = checkout.path / "run.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    change(lines)
    first, *records, end = lines
    whole = b"".join(json.dumps(line).encode() + b"\n" for line in (first, *map(sealed, records)))
    end["sha256"] = hashlib.sha256(whole).hexdigest()
    file.write_bytes(whole + json.dumps(end).encode() + b"\n")


def of_fidelity(lines: list[Data]) -> Data:
    (found,) = (line for line in lines if line.get("gate") == "fidelity")
    return found


def test_a_run_of_another_commit(checkout: Checkout) -> None:
    checkout.run()
    checkout.spoil()
    checkout.commit("change")
    complaints = checkout.complaints()
    assert any(line.startswith("the run was of ") for line in complaints)
    assert "fidelity: it was measured of other bytes than lie in this checkout" in complaints


def test_a_run_without_its_end(checkout: Checkout) -> None:
    checkout.run()
    file = checkout.path / "run.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert "the run was cut off" in checkout.complaints()[0]


def test_a_run_written_anew_with_the_measurement_of_a_right_package(checkout: Checkout) -> None:
    """Only measuring again tells; the share decides how likely that is."""
    checkout.run()
    lines = [json.loads(line) for line in (checkout.path / "run.jsonl").read_text().splitlines()]
    right = of_fidelity(lines)
    checkout.spoil()
    checkout.commit("change")
    checkout.run()

    def forge(lines: list[Data]) -> None:
        of_fidelity(lines).update(measurement=right["measurement"], verdict=right["verdict"])
        lines[-1]["end"]["exit_code"] = 0

    edited(checkout, forge)
    assert not checkout.complaints()
    (complaint,) = checkout.complaints(recheck=1)
    assert complaint.startswith("fidelity: ")


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        (
            {"arithmetic": "simulated ANE (h16+)"},
            "fidelity: its measurement was computed as simulated ANE (h16+), typed",
        ),
        (
            {"backend": "coreml", "compute_units": "CPU_AND_NE", "virtual": "yes"},
            "fidelity: it was measured on a virtual machine, which proves nothing of the ANE",
        ),
        ({"native": "replaced"}, "fidelity: its measurement was answered by a replay"),
    ],
)
def test_a_measurement_of_no_device(
    checkout: Checkout, environment: dict[str, str], complaint: str
) -> None:
    checkout.run()
    edited(checkout, lambda lines: of_fidelity(lines)["environment"].update(environment))
    assert checkout.complaints() == [complaint]


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("edit", "change"),
    [
        (
            lambda path: add(
                path / "shards.toml", "[models.own.policy.fidelity]\nmin-cosine = 0.1\n"
            ),
            "own.policy.fidelity.min_cosine 0.97 -> 0.1",
        ),
        (
            lambda path: add(path / "shards.toml", "[models.own.policy]\nunproven = 'allow'\n"),
            "own.policy.unproven fail -> allow",
        ),
        (
            lambda path: (path / "shards.toml").write_text(
                (path / "shards.toml").read_text().replace("shard.good", "shard.renamed")
            ),
            "own.shard.good removed",
        ),
        (
            lambda path: (shutil.rmtree(path / "float32.mlpackage"),
                          shutil.copytree(path / "good.mlpackage", path / "float32.mlpackage")),
            "float32.mlpackage edited",
        ),
        (
            lambda path: own_gate(path, "def test_fidelity(ane_shard): pass\n"),
            "gates/test_fidelity.py edited",
        ),
        (
            lambda path: own_gate(path, "def test_mine(ane_shard): pass\n", "test_mine.py"),
            "gates/test_mine.py added",
        ),
    ],
)  # fmt: skip
def test_a_change_of_what_judges_needs_a_review(
    checkout: Checkout, edit: Edit, change: str
) -> None:
    checkout.spoil()
    edit(checkout.path)
    checkout.commit("change")
    checkout.run()
    audit = checkout.audit()
    assert change in audit.changes
    assert "what judges the run is changed, and nobody has reviewed it" in audit.problems


def add(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def own_gate(path: Path, text: str, name: str = "test_fidelity.py") -> None:
    (path / "gates").mkdir()
    (path / "gates" / name).write_text(f"import pytest\npytestmark = pytest.mark.gate\n{text}")


def test_a_change_of_policy_that_was_reviewed_passes(checkout: Checkout) -> None:
    add(checkout.path / "shards.toml", "[models.own.policy.fidelity]\nmin-cosine = 0.95\n")
    checkout.commit("change")
    assert checkout.run().ret == 0
    audit = checkout.audit(reviewed=True, recheck=100)
    assert audit.changes == ("own.policy.fidelity.min_cosine 0.97 -> 0.95",
                             "own.shard.good.policy.fidelity.min_cosine 0.97 -> 0.95")  # fmt: skip
    assert not audit.problems
    assert {v.status for v in audit.verdicts} == {"passed"}


def test_another_pytest_ane(checkout: Checkout) -> None:
    checkout.run()
    edited(checkout, lambda lines: lines[0]["run"].update(plugin="0" * 64))
    assert "the run used another pytest-ane than this one" in checkout.complaints()


def test_a_selection_that_leaves_shards_out(checkout: Checkout) -> None:
    packages = checkout.project.workshop.packages
    shutil.copytree(packages["other"], checkout.path / "other.mlpackage")
    text = '[models.own.shard.{}]\nartifact = "other.mlpackage"\nreference = "none"\n'
    add(checkout.path / "shards.toml", text.format("other"))
    git(checkout.path, "add", "--force", "other.mlpackage")
    checkout.commit("two shards")
    git(checkout.path, "tag", "--force", "base")
    checkout.project.gate("--ane-report=run.jsonl", shards="good")
    assert checkout.complaints().count("fidelity: due, and the run has no verdict of it") == 1


def verify_run(checkout: Checkout, *options: str) -> subprocess.CompletedProcess[str]:
    """`pytest-ane evidence verify-run` as the required check starts it, isolated."""
    cache = f"--cache={checkout.project.workshop.cache}"
    command = ["pytest-ane", "evidence", "verify-run", "run.jsonl"]
    words = [*command, "--policy-from=base", cache, *options]
    root = str(Path(pytest_ane.__file__).parents[1])
    start = f"import sys, runpy; sys.path.insert(0, {root!r}); sys.argv = {words!r}; "
    start += "runpy.run_module('pytest_ane.cli', run_name='__main__')"
    isolated = [sys.executable, "-I", "-c", start]
    return subprocess.run(isolated, cwd=checkout.path, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_reviewed_builder_is_the_pull_request_s_own(checkout: Checkout) -> None:
    add(checkout.path / "shards.toml", BUILDER)
    (checkout.path / "small_block.py").write_text(BLOCK)
    checkout.commit("a model of our own")
    assert checkout.run().ret == 0
    assert "nobody has reviewed it" in verify_run(checkout).stderr
    done = verify_run(checkout, "--reviewed", "--recheck=100%")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 gates: 2 warned, 4 passed" in done.stdout


@pytest.mark.slow
def test_verify_run_is_isolated_from_modules_of_the_pull_request(checkout: Checkout) -> None:
    checkout.run()
    for name in ("pytest_ane", "numpy", "tomlkit"):
        (checkout.path / f"{name}.py").write_text("raise SystemExit(0)\n")
    done = verify_run(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 gates: 1 warned, 2 passed" in done.stdout
    for file in checkout.path.glob("*.py"):
        file.unlink()
    command = ("-m", "pytest_ane.cli", "evidence", "verify-run", "run.jsonl", "--policy-from=base")
    plain = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert plain.returncode == 1
    assert "run it isolated: python -I -m pytest_ane.cli evidence verify-run" in plain.stderr


def test_hazards_are_never_believed(checkout: Checkout) -> None:
    """No file of evidence holds them: they are measured again."""
    add(checkout.path / "shards.toml", '[models.own]\narithmetic = "ane"\n')
    checkout.commit("the ANE's arithmetic")
    git(checkout.path, "tag", "--force", "base")
    checkout.run().assert_outcomes(passed=4, deselected=1)
    assert checkout.complaints() == []


# An older record in a newer one's place: still of these bytes, and no longer the latest.

RECORD = ("--ane-backend=coreml", "--ane-record=all", "-k", "placement")


@pytest.fixture
def recorded(
    checkout: Checkout,
    genuine: None,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Checkout:
    """Two records of a plan, the second one in the base; a parameter adds to the policy."""
    (checkout.path / ".gitignore").write_text("run.jsonl\n__pycache__\n.pytest_cache\n")
    add(checkout.path / "shards.toml", '[models.own.policy.placement]\nrequire = "plan"\n')
    add(checkout.path / "shards.toml", getattr(request, "param", ""))
    with Replayer(Script()):
        checkout.project.gate(*RECORD)
        shutil.copytree(checkout.path / "evidence", checkout.path / "older")
        checkout.project.gate(*RECORD)
    checkout.commit("evidence")
    git(checkout.path, "tag", "--force", "base")
    return checkout


@pytest.mark.slow
def test_the_latest_record_passes(recorded: Checkout) -> None:
    assert recorded.run("--ane-backend=cpu").ret == 0
    assert recorded.complaints() == []


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recorded", "system"),
    [("", ""), ('[models.own.policy.evidence]\nsystems = ["macOS 26"]\n', "@macos-26")],
    indirect=["recorded"],
)
def test_an_older_record_is_named(recorded: Checkout, system: str) -> None:
    name = f"own/good.placement{system}.json"
    shutil.copy(recorded.path / "older" / name, recorded.path / "evidence" / name)
    recorded.commit("older")
    assert recorded.run("--ane-backend=cpu").ret == 0
    assert recorded.complaints() == [
        "placement: its evidence was rolled back: record 1 stands in place of record 2"
    ]


def complaint(checkout: Checkout) -> str:
    """Why the check is red, where it is for one reason before anything is judged."""
    (said,) = checkout.complaints()
    return said


@pytest.mark.parametrize(
    "link",
    [
        lambda path, base: relink(path / "good.mlpackage", base / "good.mlpackage"),
        lambda path, base: relink(
            path / "good.mlpackage/Data/com.apple.CoreML/weights/weight.bin",
            base / "good.mlpackage/Data/com.apple.CoreML/weights/weight.bin",
        ),
        lambda path, base: relink(path / "float32.mlpackage", base / "good.mlpackage"),
        lambda path, base: relink(path / "evidence", base),
        lambda path, base: relink(path / "shards.toml", base / "shards.toml"),
    ],
    ids=["package", "weights", "reference", "evidence", "manifest"],
)
def test_no_path_leads_out_of_the_checkout(
    checkout: Checkout, link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    """Such as to the checkout of the base, whose package is right."""
    base = tmp_path / "base"
    shutil.copytree(checkout.path, base, ignore=shutil.ignore_patterns(".git"))
    checkout.spoil()
    link(checkout.path, base)
    checkout.commit("change")
    checkout.run()
    assert re.search(r" leads out of the checkout, to .*/base", complaint(checkout))


def relink(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


def test_a_link_inside_of_the_checkout_is_followed(checkout: Checkout) -> None:
    (checkout.path / "good.mlpackage").rename(checkout.path / "kept.mlpackage")
    (checkout.path / "good.mlpackage").symlink_to("kept.mlpackage")
    git(checkout.path, "add", "--force", "good.mlpackage", "kept.mlpackage")
    checkout.commit("change")
    checkout.run()
    assert not checkout.complaints()


def test_what_may_be_unproven_must_not_have_failed(checkout: Checkout) -> None:
    """One status for missing evidence; a test that failed, or is not there, is no such thing."""
    add(checkout.path / "shards.toml", "[models.own.policy]\nunproven = 'allow'\n")
    checkout.commit("unproven is allowed")
    git(checkout.path, "tag", "--force", "base")
    checkout.spoil()
    checkout.commit("change")
    checkout.run()
    assert red_of(checkout) == {"fidelity": "failed"}

    def leave_out(lines: list[Data]) -> None:
        lines.remove(of_fidelity(lines))
        lines[-1]["end"]["records"] -= 1

    edited(checkout, leave_out)
    assert red_of(checkout) == {"fidelity": "failed"}


def red_of(checkout: Checkout) -> dict[str, str]:
    """Gates that no policy lets be, with their status."""
    run = read_run(checkout.path / "run.jsonl")
    with base_of("base", checkout.path / "shards.toml") as base:
        auditor = Auditor(run, base, cache=checkout.project.workshop.cache)
        verdicts = auditor.audit().verdicts
        return {v.gate: v.status for v in verdicts
                if v.status != "passed" and not auditor.allows(v)}  # fmt: skip


def test_loosened_policies_are_told_first_and_all(checkout: Checkout) -> None:
    lines = [f'[models.own.shard.x{i:02}]\nartifact = "good.mlpackage"\nreference = "none"\n'
             for i in range(30)]  # fmt: skip
    add(checkout.path / "shards.toml", "".join(lines))
    add(checkout.path / "shards.toml", "[models.own.policy.fidelity]\nmin-cosine = 0.1\n")
    with base_of("base", checkout.path / "shards.toml") as base:
        changes = base.changes()
    assert len(changes) > 30
    assert changes[0] == "own.policy.fidelity.min_cosine 0.97 -> 0.1"


@pytest.mark.slow
def test_a_plan_that_nobody_asked_for_makes_nothing_green(
    checkout: Checkout, genuine: None
) -> None:
    """Of a pull request; what the base has is the base's."""
    (checkout.path / ".gitignore").write_text("run.jsonl\n__pycache__\n.pytest_cache\n")
    add(checkout.path / "shards.toml", '[models.own.policy.placement]\nrequire = "predicted"\n')
    checkout.commit("predicted")
    git(checkout.path, "tag", "--force", "base")
    with Replayer(Script()):
        checkout.project.gate(*RECORD)
    checkout.commit("a plan")
    assert checkout.run("--ane-backend=cpu").ret == 0
    assert complaint(checkout).startswith("placement: 100.0% of the estimated work is off the ANE")
    assert checkout.audit().evidence == ("evidence/own/good.placement.json added",)
    git(checkout.path, "tag", "--force", "base")
    assert not checkout.complaints()


OWN_GATE = """\
from pathlib import Path
import pytest
from limits import MOST

@pytest.mark.gate
def test_small(ane_artifact):
    assert ane_artifact.size < MOST
    assert ane_artifact.size < int(Path(__file__).with_name("most.txt").read_text())
"""


@pytest.fixture
def with_own(checkout: Checkout) -> Checkout:
    """A base that has a gate of its own, with a helper and a file of data."""
    own_gate(checkout.path, "", "test_small.py")
    for name, text in {
        "test_small.py": OWN_GATE, "limits.py": "MOST = 1_000_000\n", "most.txt": "1000000\n",
    }.items():  # fmt: skip
        (checkout.path / "gates" / name).write_text(text)
    checkout.commit("a gate of our own")
    git(checkout.path, "tag", "--force", "base")
    return checkout


@pytest.mark.slow
def test_own_gates_are_due(with_own: Checkout) -> None:
    assert with_own.run().ret == 0
    assert not with_own.complaints()

    def leave_out(lines: list[Data]) -> None:
        (own,) = (line for line in lines if line.get("gate") == "small")
        lines.remove(own)
        lines[-1]["end"]["records"] -= 1

    edited(with_own, leave_out)
    assert with_own.complaints() == ["small: due, and the run has no test of it"]


@pytest.mark.slow
def test_an_own_gate_that_a_review_let_go_is_not_due(with_own: Checkout) -> None:
    (with_own.path / "gates/test_small.py").unlink()
    with_own.commit("change")
    assert with_own.run().ret == 0
    assert "small: due, and the run has no test of it" in with_own.complaints()
    audit = with_own.audit(reviewed=True)
    assert not audit.problems
    assert {v.status for v in audit.verdicts} == {"passed"}


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "[pytest]\naddopts = -k 'not small'\n"),
        ("pytest.ini", "[pytest]\npython_files = test_f*.py test_c*.py test_p*.py\n"),
        ("conftest.py", "import pytest\ndef pytest_collection_modifyitems(items):\n"
         "    [i.add_marker(pytest.mark.skip) for i in items if 'small' in i.name]\n"),
        ("gates/conftest.py", "collect_ignore = ['test_small.py']\n"),
        ("gates/limits.py", "MOST = 10**12\n"),
        ("gates/most.txt", "1000000000000\n"),
        ("gates/pytest.py", "raise SystemExit(0)\n"),
    ],
)  # fmt: skip
def test_own_gates_cannot_be_talked_away(with_own: Checkout, name: str, text: str) -> None:
    (with_own.path / name).write_text(text)
    with_own.commit("change")
    with_own.run()
    audit = with_own.audit()
    assert any(line.startswith(f"{name} ") for line in audit.changes)
    assert "what judges the run is changed, and nobody has reviewed it" in audit.problems
