"""`--ane-record`: evidence is written on a Mac, and only what was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_ane.gates import fidelity
from pytest_ane.mac.testing import INTEL, TRANSLATED, VIRTUAL, DeviceRule, Mac, Replayer, Script
from tests.plugin.conftest import Project, refused

CORE_ML = "--ane-backend=coreml"
GATES = ("compression", "fidelity", "placement")


pytestmark = pytest.mark.usefixtures("genuine")


def record(project: Project, *options: str, script: Script | None = None) -> pytest.RunResult:
    with Replayer(script or Script()):
        return project.gate(CORE_ML, *options)


def files(project: Project) -> list[str]:
    folder = project.path / "evidence"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.json"))


def kept(project: Project, name: str) -> Any:
    return json.loads((project.path / "evidence" / name).read_text())


@pytest.mark.drawn
@pytest.mark.slow
def test_one_file_per_shard_and_gate(project: Project) -> None:
    result = record(project.packages(good="float32", other="none"), "--ane-record")
    result.assert_outcomes(passed=6, deselected=1)
    assert files(project) == [
        f"own/{shard}.{gate}.json" for shard in ("good", "other") for gate in GATES
    ]
    result.stdout.fnmatch_lines(["*= ane evidence =*", "evidence: 6 recorded"])


@pytest.mark.slow
def test_a_model_has_one_file_of_behaviour_over_all_its_shards(project: Project) -> None:
    project.llama()
    record(project, "--ane-record", "-k", "behaviour").assert_outcomes(passed=1, deselected=12)
    assert files(project) == ["mini/behaviour.json"]
    subjects = kept(project, "mini/behaviour.json")["files"].keys()
    assert {name.partition("/")[0] for name in subjects} == {"L00", "L01", "head.0", "head.1"}


@pytest.mark.drawn
@pytest.mark.parametrize("machine", [VIRTUAL, TRANSLATED, INTEL, Mac(cores=0)])
def test_without_an_ane_nothing_is_recorded_of_it(project: Project, machine: Mac) -> None:
    project.packages(good="none")
    result = record(project, "--ane-record", script=Script(machine))
    result.assert_outcomes(passed=1, failed=2, deselected=1)
    assert files(project) == ["own/good.compression.json"]  # Any machine's counts.
    result.stdout.fnmatch_lines(["*which proves nothing of the ANE*"])


def test_without_an_ane_a_comparison_is_measured_and_not_recorded(project: Project) -> None:
    project.packages(good="none")
    options = ("--ane-record", "--ane-compute-units=CPU_ONLY", "-k", "fidelity")
    result = record(project, *options, script=Script(VIRTUAL))
    result.assert_outcomes(passed=1, deselected=3)
    assert files(project) == []
    result.stdout.fnmatch_lines(["evidence: 1 not recorded", "  measured on a virtual machine *"])


def test_valid_evidence_is_kept_and_not_measured_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(project.packages(good="none"), "--ane-record")
    before = kept(project, "own/good.placement.json")
    result = record(
        project, "--ane-record", script=Script(devices=(DeviceRule("CPU"),), machine=Mac(os="15"))
    )
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(["evidence: 3 kept"])
    assert kept(project, "own/good.placement.json") == before


@pytest.mark.slow
def test_all_records_again_and_says_what_changed(project: Project) -> None:
    record(project.packages(good="none"), "--ane-record", "-k", "placement")
    script = Script(devices=(DeviceRule("CPU", op="conv"),), machine=Mac(build="25C1"))
    result = record(project, "--ane-record=all", "-k", "placement", script=script)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["recorded again own/good.placement.json", "  *os_build 25B78 -> 25C1*"]
    )
    environment = kept(project, "own/good.placement.json")["environment"]
    assert environment["os_build"] == "25C1"


def test_stale_evidence_is_recorded_again_and_missing_is_not(project: Project) -> None:
    package = project.copy("good")
    more = f'[models.own.shard.good]\nartifact = "{package}"\nreference = "none"\n'
    project.packages(more, other="none")
    record(project, "--ane-record", "-k", "compression and good")
    (package / "more").write_text("another file")
    result = record(project, "--ane-record=stale", "-k", "compression")
    result.assert_outcomes(passed=2, deselected=5)
    assert files(project) == ["own/good.compression.json"]
    result.stdout.fnmatch_lines(["evidence: 1 left missing, 1 recorded again"])


def test_damaged_evidence_is_stale(project: Project) -> None:
    record(project.packages(good="none"), "--ane-record", "-k", "placement")
    file = project.path / "evidence" / "own" / "good.placement.json"
    file.write_text("{")
    record(project, "--ane-record=missing", "-k", "placement")
    assert file.read_text() == "{"
    result = record(project, "--ane-record=stale", "-k", "placement")
    assert kept(project, "own/good.placement.json")
    result.stdout.fnmatch_lines(["recorded again *", "  what was there could not be read: *"])


def test_a_file_of_somebody_else_in_its_place_is_not_replaced(project: Project) -> None:
    project.packages(good="none")
    file = project.path / "evidence/own/good.placement.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"name": "mine"}')
    record(project, "--ane-record", "-k", "placement").assert_outcomes(failed=1, deselected=3)
    assert file.read_text() == '{"name": "mine"}'


def test_evidence_that_the_policy_does_not_count_is_said_so(project: Project) -> None:
    project.packages('[models.own.policy.evidence]\nchips = ["Apple M9"]\n', good="none")
    result = record(project, "--ane-record", "-k", "placement")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["does not count own/good.placement.json", "  *Apple M4 Max*takes 'Apple M9'*"]
    )


def test_evidence_goes_where_it_is_told(project: Project) -> None:
    record(project.packages(good="none"), "--ane-record", "--ane-evidence=proof")
    assert len(list((project.path / "proof" / "own").iterdir())) == 3


def test_files_that_no_shard_uses_are_reported(project: Project) -> None:
    record(project.packages(good="none", other="none"), "--ane-record")
    result = record(project.packages(good="none"))
    result.stdout.fnmatch_lines(
        ["evidence: 3 files that no shard uses: own/other.compression.json, *prune*"]
    )


def test_a_package_alone_has_no_say_in_what_is_used(project: Project) -> None:
    record(project.packages(good="none"), "--ane-record")
    package = project.copy("other")
    result = project.run(f"--ane-package={package}", "-m", "gate")
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.no_fnmatch_line("*no shard uses*")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ane-backend=cpu", "--ane-record"), "*evidence is recorded on a Mac, *uses cpu."),
        ((CORE_ML, "--ane-record=new"), "*'new' is none of missing, stale, all."),
        ((CORE_ML, "--ane-record", "-n2"), "--ane-record under xdist*"),
        ((CORE_ML, "--ane-record", "--dist=load", "--tx=2*popen"), "--ane-record under xdist*"),
    ],
)
def test_what_records_nothing(project: Project, options: tuple[str, ...], says: str) -> None:
    with Replayer(Script()):
        refused(project.packages(good="none").gate(*options), says)
    assert not (project.path / "evidence").exists()


def test_without_shards_nothing_is_recorded(project: Project) -> None:
    refused(project.run("--ane-record"), "*none is selected; add --ane-shards=all -m gate.")


def test_ci_is_refused_unless_forced(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    project.packages(good="none")
    refused(record(project, "--ane-record"), "--ane-record in CI *")
    record(project, "--ane-record", "--ane-record-force").assert_outcomes(passed=3, deselected=1)
    assert len(files(project)) == 3


def test_a_folder_that_cannot_be_written_is_one_sentence(project: Project) -> None:
    (project.path / "evidence").write_text("a file")
    refused(
        record(project.packages(good="none"), "--ane-record", "-k", "compression"),
        "*evidence cannot be written (*); name another with *",
    )


def test_what_could_not_be_written_is_not_counted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytest_ane.records.store.write_atomically", full)
    result = record(project.packages(good="none"), "--ane-record", "-k", "compression")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.no_fnmatch_line("*1 recorded*")


def test_an_artifact_that_changes_while_it_is_measured(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = project.copy("good")
    text = f'[models.own.shard.good]\nartifact = "{package}"\nreference = "none"\n'
    project.manifest(text)
    measure = fidelity.measure

    def meddled(*args: Any, **options: Any) -> Any:
        (package / "new.txt").touch()
        return measure(*args, **options)

    monkeypatch.setattr("pytest_ane.gates.fidelity.measure", meddled)
    result = record(project, "--ane-record", "-k", "fidelity")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*own:good changed while its fidelity was measured, *"])
    assert files(project) == []
