"""Facts and what they mean."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ane.first_contact import ASSUMPTIONS, Finding, compare

MACHINE: dict[str, Any] = {
    "chip": "Apple M4", "os": "macOS 26.1", "os_build": "25B78", "devices": ["CPU", "ANE"],
    "ane_cores": 16, "no_ane": "", "virtual": False, "translated": False, "native": "Core ML",
    "python_machine": "arm64", "compiler": "coremlcompiler 3500.32.1",
    "tools": {
        "xcode-select -p": {"exit_code": 2, "stdout": "", "stderr": "no tools", "seconds": 0.1},
        "xcrun coremlcompiler version": {"exit_code": 0, "stdout": "3500.32.1"},
        "sysctl -n sysctl.proc_translated": {"exit_code": 0, "stdout": "0"},
    },
}  # fmt: skip


def ran(status: str = "passed", **more: Any) -> dict[str, Any]:
    """Facts of a run of pytest with one verdict."""
    verdict = {"gate": "placement", "status": status, "summary": "", "figures": {}}
    return {"seconds": 1, "verdicts": [verdict], **more}


def found(step: str, facts: dict[str, Any], words: str = "") -> Finding:
    """The finding of a step, the first whose assumption has the words."""
    return next(f for f in compare({step: facts}) if f.step == step and words in f.assumed)


@pytest.mark.parametrize("step", ["compilers", "gates", "arithmetic", "plans"])
def test_nothing_recorded_is_not_known(step: str) -> None:
    assert {f.holds for f in compare({step: {}}) if f.step == step} == {None}


def test_words_of_the_wrong_kind_are_shown_as_text() -> None:
    finding = found("plans", {"conv-iOS18": {"error": "x", "explained": [1]}}, "for iOS 18")
    assert finding.found == "[1]"


def test_a_step_that_was_not_run_is_not_known() -> None:
    findings = list(compare({}))
    assert len(findings) == len(ASSUMPTIONS)
    assert {(f.holds, f.found) for f in findings} == {(None, "not run")}


@pytest.mark.parametrize(
    ("step", "facts", "holds"),
    [
        ("plans", {"ended": "SIGABRT"}, False),
        ("package-plan", {"ended": "SIGABRT"}, True),
        ("package-plan", {"hung": 300}, False),
        ("package-plan", {"error": "no", "type": "RuntimeError", "explained": "no"}, False),
        ("plans", {"failed": "KeyError: 'x'"}, None),
        ("plans", {"left_out": "no ANE"}, None),
        ("plans", {"conv-iOS18": 3}, None),
        ("loads", {"times": 240, "early": 10**8, "late": 10**8 + 10**7, "seconds": 1.0}, True),
        ("loads", {"times": 240, "early": 10**8, "late": 2 * 10**8, "seconds": 1.0}, False),
        ("load-error", {"error": "", "answer": "X"}, None),
        ("load-error", {"error": "e", "type": "RuntimeError", "explained": "It failed."}, True),
        ("load-error", {"error": "e", "type": "RuntimeError", "explained": "{ a = 1; }"}, False),
        ("image", {"dtype": "float32", "difference": 0.0}, True),
        ("image", {"dtype": "float32", "difference": 3.0}, False),
        ("int8", {"dtype": "int8", "output": [[1, 0]], "expected": [[1, 2]]}, True),
        ("int8", {"dtype": "int8", "output": [[1, 2]], "expected": [[1, 2]]}, False),
        ("interrupt", {"seconds": 0.1, "exit_code": -2}, True),
        ("interrupt", {"seconds": None, "exit_code": None}, False),
        ("stale-model", {}, None),
        ("stale-model", {"25A1": {"error": ""}}, False),
        ("stale-model", {"25A1": {"error": "code: -14", "explained": "-14"}}, True),
        ("machine", MACHINE, True),
        ("machine", {**MACHINE, "no_ane": "a virtual machine", "virtual": True}, False),
        ("arithmetic", {"exp": {"rows": 2, "reason": ""}}, True),
        ("arithmetic", {"exp": {"rows": 0, "reason": "on the CPU"}}, False),
        ("gates", {"CPU_ONLY": {"seconds": 1, "stderr": "no tests"}}, False),
        (
            "gates",
            {"CPU_ONLY": {"seconds": 1, "verdicts": [
                {"gate": "fidelity", "status": "failed", "summary": "", "figures": {}}]}},
            True,
        ),
        ("evidence", ran(no_ane="a virtual machine", recorded=["c.compression.json"]), True),
        ("evidence", ran(no_ane="a virtual machine", recorded=["c.placement.json"]), False),
        ("evidence", ran(no_ane="", recorded=["c.fidelity.json"]), True),
        ("evidence", ran(no_ane="", recorded=[]), False),
        (
            "evidence",
            {"no_ane": "a virtual machine", "recorded": [], "seconds": 1, "stderr": "no pytest"},
            None,
        ),
        ("workers", ran(no_ane=""), True),
        ("workers", ran("unproven", no_ane=""), False),
        ("workers", ran(no_ane="a virtual machine"), None),
    ],
)  # fmt: skip
def test_the_first_assumption_of_a_step(
    step: str, facts: dict[str, Any], holds: bool | None
) -> None:
    assert found(step, facts).holds is holds


def test_four_processes_on_a_virtual_machine_prove_nothing() -> None:
    finding = found("workers", ran(no_ane="a virtual machine"))
    assert finding.found.startswith("This is a virtual machine; on its CPU: ")


def compiled(added: dict[str, int], removed: dict[str, int]) -> dict[str, Any]:
    by = {"ops": [], "added": added, "removed": removed}
    return {"conv": {"package": [], "system": by}}


@pytest.mark.parametrize(
    ("facts", "holds", "sentence"),
    [
        (compiled({}, {}), True, "conv: the same ops"),
        (compiled({"cast": 2}, {"const": 1}), True, "adds 2 cast, folds or renames 1 const"),
        (compiled({}, {"reshape": 2}), False, "folds or renames 2 reshape"),
        ({"conv": {"package": [], "system": {"error": "disk full"}}}, False, "disk full"),
    ],
)
def test_what_a_compiler_changes(facts: dict[str, Any], holds: bool, sentence: str) -> None:
    finding = found("compilers", facts)
    assert finding.holds is holds
    assert sentence in finding.found
    assert found("compilers", facts, "So does Xcode").holds is None


def planned(**devices: str | None) -> dict[str, Any]:
    """Functions with one `conv` each, on a device or without a usage."""
    ops = [[name, "conv", "y", device, [], None] for name, device in devices.items()]
    return {"functions": {"ops": ops}, "conv-iOS18": {"ops": ops}}


def test_devices_of_a_plan() -> None:
    with_usage = found("plans", planned(main="ANE"), "for iOS 18")
    assert (with_usage.holds, with_usage.found) == (True, "1 of 1 compute ops on ANE")
    without = found("plans", planned(main=None), "for iOS 18")
    assert (without.holds, without.found) == (False, "no usage for any of 1 compute ops")


def test_the_plan_of_two_functions() -> None:
    assert found("plans", planned(one="ANE", two=None), "default").holds is True
    assert found("plans", planned(one="ANE", two="ANE"), "default").holds is False


def test_a_translated_python_that_sysctl_does_not_tell_of() -> None:
    tools = {**MACHINE["tools"], "sysctl -n sysctl.proc_translated": {"stdout": "0"}}
    facts = {**MACHINE, "python_machine": "x86_64", "translated": True, "tools": tools}
    assert found("machine", facts, "translated").holds is False
    assert found("machine", MACHINE, "translated").holds is True


def test_figures_of_ane_and_cpu() -> None:
    def run(cosine: float) -> dict[str, Any]:
        verdict = {
            "gate": "fidelity",
            "status": "passed",
            "summary": "",
            "figures": {"cos": cosine},
        }
        return {"seconds": 1, "verdicts": [verdict]}

    differ = found("gates", {"CPU_AND_NE": run(0.99), "CPU_ONLY": run(1.0)}, "otherwise")
    assert (differ.holds, differ.found) == (True, "fidelity cos 0.99 and 1.0")
    assert (
        found("gates", {"CPU_AND_NE": run(1.0), "CPU_ONLY": run(1.0)}, "otherwise").holds is False
    )
    assert found("gates", {"CPU_ONLY": run(1.0)}, "otherwise").holds is None


@pytest.mark.parametrize("late", [None, "8", [1], {}, 10**400])
def test_facts_of_the_wrong_kind_are_damaged(late: Any) -> None:
    facts = {"times": 240, "early": 10**8, "late": late, "seconds": 1.0}
    finding = found("loads", facts)
    assert finding.holds is None
    assert finding.found.startswith("the facts are damaged (")
