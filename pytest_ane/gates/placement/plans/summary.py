"""A plan counted: where the compute ops run, and what that proves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pytest_ane.gates.placement.plans.record import RETRIED, Device, Plan, PlannedOperation
from pytest_ane.mlprogram.text import printable

Outcome = Literal["resident", "not resident", "inconclusive"]
plain = partial(printable, longest=200)


@dataclass(frozen=True)
class Summary:
    """What a plan comes to.

    Attributes:
        devices: compute ops by preferred device.
        elsewhere: compute ops that are counted as not on the ANE, on a device not told.
        conv_ane, conv_total: convolutions; `None` where the source tells no types.
        compile_time: `const` and `constexpr_*`, which have no device, by type.
        folded: compute ops that the compiler left out.
        added: ops that it added, by type.
        renamed: ops that it renamed.
        boundary_casts: casts of a function's inputs and outputs, image scaling, `classify`.
        off: compute ops that are not on the ANE, those without a device included.
        outcome: `resident` only if every compute op prefers the ANE.
        inconclusive: why it proves nothing, and what to do; None where it does.
    """

    devices: Mapping[Device, int]
    elsewhere: int
    conv_ane: int | None
    conv_total: int | None
    compile_time: Mapping[str, int]
    folded: int
    added: Mapping[str, int]
    renamed: int
    boundary_casts: int
    off: tuple[tuple[str, PlannedOperation], ...]
    outcome: Outcome
    inconclusive: tuple[str, str] | None

    @property
    def unassigned(self) -> int:
        """Compute ops without a device."""
        return sum(operation.preferred is None for _, operation in self.off)

    @property
    def compute(self) -> int:
        """Compute ops, with a device or without."""
        return sum(self.devices.values()) + self.elsewhere + self.unassigned


def summarise(plan: Plan) -> Summary:
    """Count a plan; only preferred devices are placement, eligibility is not looked at."""
    compile_time: Counter[str] = Counter()
    devices: Counter[Device] = Counter()
    convs: Counter[bool] = Counter()
    casts, folded, off, typed = 0, 0, [], False
    for function, operation in plan.walk():
        typed = typed or operation.op is not None
        if operation.op == "const" or (operation.op or "").startswith("constexpr_"):
            compile_time[str(operation.op)] += 1
            continue
        if operation.boundary:
            casts += 1
            continue
        if operation.folded:
            folded += 1
            continue
        if operation.op == "conv":
            convs[operation.preferred == "ANE"] += 1
        if operation.preferred:
            devices[operation.preferred] += 1
        if operation.preferred != "ANE":
            off.append((function, operation))
    elsewhere = 0
    for tally in plan.tallies:
        if tally.op is None:
            devices["ANE"] += tally.ane
            elsewhere += tally.total - tally.ane
        elif tally.op == "conv":
            convs[True] += tally.ane
            convs[False] += tally.total - tally.ane
        typed = typed or tally.op is not None
    lost = [operation for _, operation in off if operation.preferred is None]
    inconclusive = _inconclusive(plan, sum(devices.values()) + elsewhere, lost)
    away = elsewhere + len(off)
    outcome: Outcome = "not resident" if away else "resident"
    return Summary(
        dict(devices),
        elsewhere,
        convs[True] if typed else None,
        convs.total() if typed else None,
        dict(sorted(compile_time.items(), key=lambda item: (-item[1], item[0]))),
        folded,
        plan.added,
        plan.renamed,
        casts,
        tuple(off),
        "inconclusive" if inconclusive else outcome,
        inconclusive,
    )


def _inconclusive(
    plan: Plan, assigned: int, lost: list[PlannedOperation]
) -> tuple[str, str] | None:
    """Why a plan proves nothing, and what to do."""
    if plan.source == "log":
        return "A log does not say where operations run", "record a compute plan"
    if failed := next((message for message in plan.messages if message.failure), None):
        meaning = plain(failed.meaning).rstrip(".")
        return f"The file records a failure on line {failed.line}: {meaning}", ""
    if plan.unmatched:
        first = plain(plan.unmatched[0])
        return (
            f"{_ops(len(plan.unmatched))} of the plan not in the package, `{first}` first",
            "give the .mlmodelc the plan was made of, or record the plan again",
        )
    if not assigned and lost and plan.target:
        return (
            f"No operation has a device: the program is for {plan.target}, and Core ML is reported "
            "to plan none of targets below iOS 18",
            "convert it with minimum_deployment_target=ct.target.iOS18; if it is the same then, "
            "Core ML's caches are broken: restart the Mac and ask again",
        )
    if not assigned and lost and plan.extra.get(RETRIED) is True:
        return (
            "No operation has a device, nor in a copy at another path: Core ML's caches are broken",
            "restart the Mac and ask again",
        )
    if not assigned and lost:
        return (
            "No operation has a device: that is a broken cache, no placement",
            "copy the compiled model to another path and record the plan again",
        )
    if not assigned:
        return "The plan places no compute op", "record it again"
    if any(operation.op is None for operation in lost):
        return (
            f"{_ops(len(lost))} without a device, of unknown type: constants are among such",
            "give --package",
        )
    if not plan.tallies and all(operation.op is None for _, operation in plan.walk()):
        return (
            "The plan names neither types nor what it leaves out, so that an operation without a "
            "device would go unseen",
            "give --package",
        )
    return None


def _ops(count: int) -> str:
    return "1 operation is" if count == 1 else f"{count:,} operations are"
