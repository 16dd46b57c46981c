"""What the Core ML backend assumes, each beside the facts that confirm or refute it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ane.first_contact.steps import LOADS, READS, STEPS, Facts

Answer = tuple[bool | None, str]
"""Whether the assumption holds, None where the facts do not tell; and what the Mac did."""
_TOLERATED = ("const", "cast")
_LEAK = 64 << 20
"""Bytes that a process may grow by over the later loads or reads."""
_SLOWEST_INTERRUPT = 5.0
"""Seconds after Ctrl-C."""
_COMPUTING = ("fidelity", "behaviour")
_MEASURED = (*_COMPUTING, "placement")


@dataclass(frozen=True)
class Assumption:
    """An assumption.

    Attributes:
        step: whose facts decide it.
        assumed: a sentence that a Mac confirms or refutes.
        judge: decides by the facts of the step.
    """

    step: str
    assumed: str
    judge: Callable[[Facts], Answer]


@dataclass(frozen=True)
class Finding:
    """An assumption and what the Mac did.

    Attributes:
        step: whose facts decided it.
        assumed: the assumption.
        found: what the Mac did, or why it is not known.
        holds: whether the assumption holds; None where it is not known.
    """

    step: str
    assumed: str
    found: str
    holds: bool | None


def compare(facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Every assumption beside the facts, by step; a step that is missing is "not run"."""
    for assumption in ASSUMPTIONS:
        holds, found = _answer(assumption, facts.get(assumption.step))
        yield Finding(assumption.step, assumption.assumed, found, holds)


def _answer(assumption: Assumption, facts: Facts | None) -> Answer:
    if facts is None:
        return None, "not run"
    if "left_out" in facts:
        return None, f"not run: {facts['left_out']}"
    if "ended" in facts:
        ended = f"Core ML ended the process ({facts['ended']})"
        return assumption.judge is _ends_process, ended
    if "hung" in facts:
        more = "if it is only slow, run again with more --seconds"
        return False, f"no answer within {facts['hung']} s; {more}"
    if "failed" in facts:
        return None, f"the step failed: {facts['failed']}"
    if not facts and assumption.judge is not _refuses_stale:
        return None, "nothing was recorded"
    try:
        holds, found = assumption.judge(facts)
        return holds, str(found)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        return None, f"the facts are damaged ({type(error).__name__}: {error})"


def _has_ane(facts: Facts) -> Answer:
    listed = ", ".join(facts["devices"]) or "no devices"
    replayed = "A script answered for Core ML. " if facts["native"] != "Core ML" else ""
    where = (
        f"{replayed}{facts['chip']}, {facts['os']} ({facts['os_build']}): Core ML lists {listed}"
    )
    if kind := facts["no_ane"]:
        return False, f"This is {kind}, which proves nothing of the ANE. {where}"
    return True, f"{where}, {facts['ane_cores']} ANE cores"


def _virtual_lists_none(facts: Facts) -> Answer:
    if not facts["virtual"]:
        return None, "this is no virtual machine"
    return "ANE" not in facts["devices"], f"lists {', '.join(facts['devices']) or 'nothing'}"


def _translated_is_told(facts: Facts) -> Answer:
    runs = "x86_64" if facts["python_machine"] == "x86_64" else facts["python_machine"]
    says = facts["tools"]["sysctl -n sysctl.proc_translated"].get("stdout", "")
    known = {"x86_64": says == "1" if facts["translated"] else None, "arm64": says == "0"}
    return known.get(runs), f"Python is {runs}, sysctl.proc_translated is {says or 'not known'}"


def _tools_answer(facts: Facts) -> Answer:
    asked = facts["tools"]["xcode-select -p"]
    if "failed" in asked:
        return False, str(asked["failed"])
    if asked["exit_code"] == 0:
        return None, "there are tools, so no window could open"
    return True, f"exit code {asked['exit_code']} after {asked['seconds']} s: {asked['stderr']}"


def _version_has_number(facts: Facts) -> Answer:
    printed = facts["tools"]["xcrun coremlcompiler version"]
    if printed.get("exit_code") != 0:
        return None, str(printed.get("stderr") or printed.get("failed") or "xcrun has none")
    return facts["compiler"].startswith("coremlcompiler"), f"prints {printed['stdout']!r}"


def _keeps_ops(compiler: str) -> Callable[[Facts], Answer]:
    def judge(facts: Facts) -> Answer:
        changes = []
        holds = True
        for name, by in facts.items():
            compiled = by.get(compiler)
            if compiled is None:
                return None, "there is no such compiler here"
            if "error" in compiled:
                return False, f"{name}: {compiled['error']}"
            removed = _compute(compiled["removed"])
            added = _compute(compiled["added"])
            holds = holds and not removed and not added
            changes.append(f"{name}: {_change(compiled)}")
        return holds, "; ".join(changes)

    return judge


def _compute(ops: Mapping[str, int]) -> dict[str, int]:
    return {
        op: count
        for op, count in ops.items()
        if op not in _TOLERATED and not op.startswith("constexpr_")
    }


def _change(compiled: Facts) -> str:
    added, removed = _counted(compiled["added"]), _counted(compiled["removed"])
    parts = [f"adds {added}"] * bool(added) + [f"folds or renames {removed}"] * bool(removed)
    return ", ".join(parts) or "the same ops"


def _counted(ops: Mapping[str, int]) -> str:
    return " and ".join(f"{count} {op}" for op, count in sorted(ops.items()))


def _same_compilers(facts: Facts) -> Answer:
    if not all("same" in by for by in facts.values()):
        return None, "only one of the two compiles here"
    differ = [name for name, by in facts.items() if not by["same"]]
    return not differ, f"they differ for {', '.join(differ)}" if differ else "all ops are the same"


def _has_usage(name: str) -> Callable[[Facts], Answer]:
    def judge(facts: Facts) -> Answer:
        plan = facts[name]
        if "error" in plan:
            return False, plan["explained"]
        computing = [op for op in plan["ops"] if _compute({op[1]: 1})]
        planned = [op for op in computing if op[3] is not None]
        if not planned:
            return False, f"no usage for any of {len(computing)} compute ops"
        devices = sorted({op[3] for op in planned})
        return True, f"{len(planned)} of {len(computing)} compute ops on {', '.join(devices)}"

    return judge


def _answers(facts: Facts) -> Answer:
    failed = [name for name, plan in facts.items() if "error" in plan]
    return len(failed) < len(facts), f"{len(facts) - len(failed)} of {len(facts)} plans"


def _only_default(facts: Facts) -> Answer:
    plan = facts["functions"]
    if "error" in plan:
        return False, plan["explained"]
    with_usage = sorted({op[0] for op in plan["ops"] if op[3] is not None})
    listed = sorted({op[0] for op in plan["ops"]})
    found = f"lists {', '.join(listed)}; usage for {', '.join(with_usage) or 'none'}"
    return with_usage in (["one"], ["main"]), found


def _explained(facts: Facts) -> Answer:
    if not facts["error"]:
        return None, f"no error, but {facts.get('answer', 'an answer')}"
    words = facts["explained"]
    plain = not any(mark in words for mark in ("{", "}", "\\U", "\\n"))
    return plain, f"{facts['type']}: {words}"


def _ends_process(facts: Facts) -> Answer:
    if not facts["error"]:
        return False, f"no error, but {facts.get('answer', 'an answer')}"
    return False, f"raises {facts['type']}: {facts['explained']}"


def _refuses_stale(facts: Facts) -> Answer:
    if not facts:
        return None, "no model of an earlier build here; run again after an upgrade of macOS"
    texts = [f"{build}: {_stale_text(attempt)}" for build, attempt in facts.items()]
    return all("-14" in attempt["error"] for attempt in facts.values()), "; ".join(texts)


def _stale_text(attempt: Facts) -> str:
    return attempt["explained"] if attempt["error"] else "loads and predicts"


def _flat(facts: Facts) -> Answer:
    grown = facts["late"] - facts["early"]
    found = f"{grown / 1e6:.1f} MB more after {facts['times']}, {facts['seconds']} s"
    return grown <= _LEAK, found


def _exact(facts: Facts) -> Answer:
    return facts["difference"] < 0.01, f"{facts['dtype']}, differs by {facts['difference']:g}"


def _strided(facts: Facts) -> Answer:
    output, expected = facts["output"], facts["expected"]
    right = output == expected
    return not right, f"{facts['dtype']} {output[0][:8]}, expected {expected[0][:8]}"


def _interruptible(facts: Facts) -> Answer:
    if facts["seconds"] is None:
        return False, "still running a minute after Ctrl-C"
    found = f"ended {facts['seconds']} s after Ctrl-C, exit code {facts['exit_code']}"
    return facts["seconds"] <= _SLOWEST_INTERRUPT, found


def _gates_answer(facts: Facts) -> Answer:
    texts = [f"{units}: {_run_text(run)}" for units, run in facts.items()]
    answered = all(_statuses(run) and "unproven" not in _statuses(run) for run in facts.values())
    return answered, "; ".join(texts)


def _statuses(run: Facts) -> list[str]:
    return [verdict["status"] for verdict in run.get("verdicts", ())]


def _run_text(run: Facts) -> str:
    lines = [f"{v['gate']} {v['status']}, {v['summary']}" for v in run.get("verdicts", ())]
    return f"{' | '.join(lines) or run.get('stderr', '')[-300:]} ({run['seconds']} s)"


def _units_differ(facts: Facts) -> Answer:
    """By the gates that compute: the ANE's plan and the CPU's differ anyway."""
    if len(facts) < 2:
        return None, "the gates ran on the CPU alone"
    ane, cpu = (_figures(run) for run in facts.values())
    shared = sorted(key for key in ane.keys() & cpu.keys() if key[0] in _COMPUTING)
    differ = [
        f"{gate} {name} {ane[gate, name]} and {cpu[gate, name]}"
        for gate, name in shared
        if ane[gate, name] != cpu[gate, name]
    ]
    if not shared:
        return None, "no figures on both"
    return bool(differ), "; ".join(differ[:8]) or f"the same {len(shared)} figures"


def _figures(run: Facts) -> dict[tuple[str, str], Any]:
    return {
        (verdict["gate"], name): value
        for verdict in run.get("verdicts", ())
        for name, value in verdict["figures"].items()
    }


def _four_at_once(facts: Facts) -> Answer:
    if kind := facts["no_ane"]:
        return None, f"This is {kind}; on its CPU: {_run_text(facts)}"
    statuses = _statuses(facts)
    answered = bool(statuses) and "unproven" not in statuses
    return answered, _run_text(facts)


def _recorded_where_proven(facts: Facts) -> Answer:
    if not _statuses(facts):  # Nothing is recorded where nothing ran.
        return None, f"no gate ran: {_run_text(facts)}"
    names = [name for name in facts["recorded"] if name.split(".")[-2] in _MEASURED]
    found = f"recorded: {', '.join(names) or 'nothing of the ANE'}"
    return bool(names) is not bool(facts["no_ane"]), found


def _on_the_ane(facts: Facts) -> Answer:
    off = [name for name, result in facts.items() if not result["rows"]]
    rows = sum(result["rows"] for result in facts.values())
    found = f"{len(facts) - len(off)} of {len(facts)} programs, {rows} rows"
    reasons = [f"{name}: {facts[name]['reason']}" for name in off[:3]]
    return not off, "; ".join([found, *reasons])


ASSUMPTIONS: Sequence[Assumption] = (
    Assumption("machine", "There is a Neural Engine, and Core ML lists it.", _has_ane),
    Assumption("machine", "A virtual machine lists no Neural Engine.", _virtual_lists_none),
    Assumption(
        "machine", "A translated Python's sysctl says 1 for sysctl.proc_translated.",
        _translated_is_told,
    ),
    Assumption(
        "machine", "`xcode-select -p` fails without a window where there are no tools.",
        _tools_answer,
    ),
    Assumption(
        "machine", "The first dotted number that `xcrun coremlcompiler version` prints is its "
        "version.", _version_has_number,
    ),
    Assumption(
        "compilers", "The system's compiler adds, renames and folds constants and casts alone.",
        _keeps_ops("system"),
    ),
    Assumption("compilers", "So does Xcode's compiler.", _keeps_ops("xcode")),
    Assumption("compilers", "Both compilers leave the same ops.", _same_compilers),
    *(
        Assumption("plans", f"The plan of {what} says where ops run.", _has_usage(name))
        for name, what in (
            ("conv-iOS18", "a program for iOS 18"),
            ("conv-iOS17", "a program for iOS 17"),
            ("conv-iOS16", "a program for iOS 16"),
            ("state", "a program with a state"),
        )
    ),
    Assumption("plans", "Core ML answers in a process without a terminal.", _answers),
    Assumption("plans", "A plan says it for the default function alone.", _only_default),
    *(
        Assumption(step, f"The error {when} becomes one sentence.", _explained)
        for step, when in (
            ("load-error", "of loading a damaged model"),
            ("plan-error", "of planning a damaged model"),
            ("predict-error", "of an input of the wrong shape"),
            ("state-error", "of `make_state` without states"),
        )
    ),
    Assumption("package-plan", "Planning a package ends the process.", _ends_process),
    Assumption(
        "stale-model", "A model that another build of macOS compiled is refused with -14.",
        _refuses_stale,
    ),
    Assumption("loads", f"{LOADS} loads do not exhaust a process.", _flat),
    Assumption("state-reads", f"{READS} reads of a state do not exhaust a process.", _flat),
    Assumption("image", "A picture arrives as the numbers that it holds.", _exact),
    Assumption("int8", "int8 outputs are read with wrong strides, so they are refused.", _strided),
    Assumption(
        "interrupt", f"Ctrl-C during a load ends a run within {_SLOWEST_INTERRUPT:g} s.",
        _interruptible,
    ),
    Assumption("gates", "The gates of a shard reach a verdict.", _gates_answer),
    Assumption("gates", "The ANE computes otherwise than the CPU.", _units_differ),
    Assumption("workers", "Four processes use one ANE at once.", _four_at_once),
    Assumption(
        "evidence", "Evidence of the ANE is recorded where there is one, and nowhere else.",
        _recorded_where_proven,
    ),
    Assumption(
        "arithmetic", "The programs of record-arithmetic are large enough for the ANE.",
        _on_the_ane,
    ),
)  # fmt: skip

assert {a.step for a in ASSUMPTIONS} == set(STEPS)
