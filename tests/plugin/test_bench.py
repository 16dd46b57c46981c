"""`-m bench`: what is timed, what of it is kept, and when."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.mac.testing import VIRTUAL, Script
from tests.plugin.conftest import Project

FAST = ("--benchmark-min-rounds=2", "--benchmark-max-time=0.01")
IDS = """\
gates/test_throughput.py::test_load[mini:L00]
gates/test_throughput.py::test_call[mini:L00-T1]
gates/test_throughput.py::test_call[mini:L00-Tmax]
gates/test_throughput.py::test_decode[mini]
"""


def bench(project: Project, *options: str, shards: str = "all") -> pytest.RunResult:
    """Benchmarks of few rounds."""
    return project.run(f"--ane-shards={shards}", "-m", "bench", *FAST, *options)


def saved(project: Project) -> dict[str, dict[str, Any]]:
    """The benchmarks of the newest stored run, by name."""
    *_, file = sorted(project.path.glob(".benchmarks/*/*.json"))
    return {one["name"]: one for one in json.loads(file.read_text())["benchmarks"]}


def settle(project: Project, seconds: float = 0.001) -> None:
    """Let all stored rounds have taken so long, however busy the machine was."""
    for file in project.path.glob("*/*/[0-9][0-9][0-9][0-9]_*.json"):
        run = json.loads(file.read_text())
        for one in run["benchmarks"]:
            one["stats"] |= dict.fromkeys(("min", "max", "mean", "median"), seconds)
            if ane := one["extra_info"].get("ane"):
                ane["seconds"] = [seconds] * len(ane["seconds"])
        file.write_text(json.dumps(run))


def test_ids_are_short_and_nothing_is_opened(project: Project) -> None:
    result = bench(project.llama(), "--co", "-q", "--ane-cache=cache")
    for line in IDS.splitlines():
        assert line in result.outlines
    result.stdout.fnmatch_lines(["13/26 tests collected (13 deselected) in *"])
    assert not (project.path / "cache").exists()


@pytest.mark.slow
def test_everything_is_timed_and_stored(project: Project) -> None:
    result = bench(project.llama(), "--benchmark-save=first", "--junitxml=out.xml")
    result.assert_outcomes(passed=13, deselected=13)
    result.stdout.re_match_lines(
        [
            r"passed   mini  +throughput  decoding [\d,.]+ tok/s",
            r"13 gates: 13 passed .*",
            r"=+ ane throughput =+",
            r"mini +decoding +[\d,.]+ tok/s  [\d.]+ ms +- +- +-",
        ]
    )
    found = saved(project)
    assert len(found) == 13
    for name, one in found.items():
        ane = one["extra_info"]["ane"]
        assert ane["identity"]["backend"] == "cpu"
        assert set(ane["identity"]) >= {"chip", "cores", "threads", "system", "python"}
        assert ane["state"]["pytest-ane"]
        assert len(ane["seconds"]) == one["stats"]["rounds"]
        assert all(re.fullmatch(r"[0-9a-f]{64}", d) for d in ane["artifacts"].values())
        if ane["tokens"]:
            assert ane["tok_s"] == pytest.approx(ane["tokens"] / one["stats"]["median"])
            assert ane["ms_token"] == pytest.approx(1000 / ane["tok_s"])
        else:
            assert name.startswith("test_load")
    call = found["test_call[mini:L00-Tmax]"]
    assert (call["group"], call["extra_info"]["ane"]["tokens"]) == ("mini T=16", 16)
    assert call["params"] == {"ane_shard": "mini:L00", "tokens": "max"}
    decoded = found["test_decode[mini]"]["extra_info"]["ane"]
    assert decoded["prompt"] == [5, 17, 40, 3, 22]
    # 16 positions are all that these shards see: 5 of the prompt, 2 to warm up, 9 rounds.
    assert len(decoded["seconds"]) == 9
    assert decoded["counts"] == {"block": 2, "head": 2}
    parts = decoded["profile"]
    assert set(parts) == {"block", "head", "host"}
    assert min(parts.values()) > 0
    properties = (project.path / "out.xml").read_text()
    assert properties.count('name="ane.tok_s"') == 9
    assert properties.count('name="ane.gate" value="throughput"') == 13


@pytest.mark.parametrize("options", [(), ("-m", "gate"), ("-m", "not slow")])
def test_no_other_run_has_benchmarks(project: Project, options: tuple[str, ...]) -> None:
    project.packages(good="none")
    result = project.run("--ane-shards=all", *options)
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.no_fnmatch_line("*ane throughput*")


def test_the_file_can_be_named_and_own_copies_are_left_out(project: Project) -> None:
    from pytest_ane.cli import main

    assert main(["init", str(project.path)]) == 0
    project.packages(good="none")
    result = project.run("--ane-shards=all", "gates/test_throughput.py", *FAST)
    result.assert_outcomes(passed=2, skipped=1, deselected=1)
    project.gate().assert_outcomes(passed=3, deselected=1)
    bench(project).assert_outcomes(passed=2, skipped=1, deselected=5)


def test_a_package_of_fixed_shapes(project: Project) -> None:
    """Nobody knows how many tokens it computes, so there are seconds, and no T of 1."""
    result = bench(project.packages(good="none"), "--benchmark-autosave", "-rs")
    result.assert_outcomes(passed=2, skipped=1, deselected=5)
    result.stdout.fnmatch_lines(["SKIPPED [[]1[]] *cannot be timed at T=1*inputs of fixed shapes*"])
    ane = saved(project)["test_call[own:good-Tmax]"]["extra_info"]["ane"]
    assert (ane["tokens"], ane["tok_s"], ane["ms_token"]) == (0, None, None)


@pytest.mark.slow
@pytest.mark.drawn
def test_benchmarks_of_one_s_own(project: Project) -> None:
    project.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.bench
        @pytest.mark.benchmark(group="mine")
        def test_verify(ane_shard_benchmark, ane_against_baseline, ane_gate):
            speed = ane_shard_benchmark(4)
            assert speed.tokens == 4
            ane_gate(ane_against_baseline(speed))

        @pytest.mark.bench
        def test_counting(ane_decode_benchmark):
            assert len(ane_decode_benchmark("counting", count=6).seconds) == 6

        @pytest.mark.bench
        def test_absent(ane_decode_benchmark):
            ane_decode_benchmark("absent")

        @pytest.mark.bench
        def test_long(ane_decode_benchmark):
            ane_decode_benchmark("counting", count=600)

        @pytest.mark.bench
        def test_ids(ane_decode_benchmark):
            assert ane_decode_benchmark([2, 42], count=5).prompt == (2, 42)

        @pytest.mark.bench
        def test_wrong_ids(ane_decode_benchmark):
            ane_decode_benchmark([2, 64])

        @pytest.mark.bench
        def test_no_ids(ane_decode_benchmark):
            ane_decode_benchmark([])
        """
    )
    result = bench(project.llama(), "-k", "test_benchmarks_of_one", "--benchmark-autosave")
    result.assert_outcomes(passed=6, failed=4, deselected=26)
    result.stdout.fnmatch_lines(
        [
            "mini has no golden prompt 'absent'; there are: counting.",
            "*do not fit the 16 positions*",
            "*'ids' of mini has token 64, and the model's vocabulary ends at 63*",
            "[[][]] are no token ids; give one or more.",
        ]
    )
    assert saved(project)["test_verify[mini:L00]"]["group"] == "mine"


def test_a_benchmark_of_somebody_else_s_is_left_alone(project: Project) -> None:
    project.pytester.makepyfile("import pytest\n@pytest.mark.bench\ndef test_own(): pass\n")
    project.packages(good="none").run("--ane-shards=all").assert_outcomes(passed=4, deselected=1)


def test_a_shard_that_cannot_be_had_is_one_row_a_benchmark(project: Project) -> None:
    result = bench(project.packages(absent="none"), "-W", "error")
    result.assert_outcomes(errors=3, deselected=5)
    result.stdout.fnmatch_lines(["ERROR    own:absent  throughput  *", "3 gates: 3 errors *"])


def test_a_canary_goes_first_and_is_not_judged_by_its_speed(project: Project) -> None:
    floor = "[models.own.policy.throughput]\nmin-tok-s = 1000000\n"
    project.packages(floor, good="none", other="none").head('[models.own]\ncanary = ["good"]\n')
    slow = ("-p", "pytest_ane.mac.testing", "--ane-slow=good:20")
    result = bench(project, "-k", "call and Tmax", *slow)
    # Nobody knows its tokens, so the floor fails it; the other is timed all the same.
    result.assert_outcomes(failed=2, deselected=12)
    result.stdout.no_fnmatch_line("not run *")


@pytest.mark.slow
def test_on_a_replayed_mac(project: Project, tmp_path: Path) -> None:
    Script().save(tmp_path)
    mac = ("-p", "pytest_ane.mac.testing", f"--ane-replay={tmp_path}", "--ane-backend=coreml")
    result = bench(project.packages(good="none"), *mac, "--benchmark-autosave")
    result.assert_outcomes(passed=2, skipped=1, deselected=5)
    ane = saved(project)["test_load[own:good]"]["extra_info"]["ane"]
    assert ane["identity"] == {
        "backend": "coreml",
        "native": "replaced by pytest-ane, not Core ML",
        "chip": "Apple M4 Max",
        "os_build": "25B78",
        "compute_units": "CPU_AND_NE",
        "model": "Mac16,5",
    }
    assert ane["state"]["os"] == "macOS 26.1"


@pytest.mark.drawn
@pytest.mark.slow
def test_without_an_ane_what_is_timed_proves_nothing(project: Project, tmp_path: Path) -> None:
    Script(VIRTUAL).save(tmp_path)
    mac = ("-p", "pytest_ane.mac.testing", f"--ane-replay={tmp_path}", "--ane-backend=coreml")
    result = bench(project.packages(good="none"), "-k", "load", *mac)
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(["UNPROVEN own:good  throughput  This is a virtual machine *"])


def test_the_executor_is_timed_by_the_processor_unless_a_timer_is_chosen(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    project.packages(good="none")
    for options, timer in (
        ((), "time.process_time"),
        (("--benchmark-timer=time.time",), "time.time"),
    ):
        bench(project, "-k", "load", "--benchmark-autosave", *options).assert_outcomes(
            passed=1, deselected=7
        )
        (one,) = saved(project).values()
        assert one["options"]["timer"] == timer.rpartition(".")[2]
        assert one["extra_info"]["ane"]["identity"]["timer"] == timer
