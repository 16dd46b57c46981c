"""A plan counted: where the compute ops run, and what that proves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pytest_ane.core.text import printable
from pytest_ane.core.verdict import Status, Verdict
from pytest_ane.gates.placement.plans.record import RETRIED, Device, Plan, PlannedOperation

Outcome = Literal["resident", "not resident", "inconclusive"]
_STATUS: dict[Outcome, Status] = {
    "resident": "passed",
    "not resident": "failed",
    "inconclusive": "unproven",
}
_SHOWN = 10
plain = partial(printable, longest=200)
EXPERIMENTAL = "The format analytics.mil is experimental: no file of Apple's confirmed its reading."


@dataclass(frozen=True)
class Summary:
    """What a plan comes to.

    Attributes:
        devices: compute ops by preferred device.
        elsewhere: compute ops that are counted as not on the ANE, on a device not told.
        conv_ane, conv_total: convolutions; `None` where the source tells no types.
        compile_time: `const` and `constexpr_*`, which have no device, by type.
        boundary_casts: casts of a function's inputs and outputs.
        off: compute ops that are not on the ANE, those without a device included.
        outcome: `resident` only if every compute op prefers the ANE.
        reasons: why it is not resident, a sentence each.
    """

    devices: Mapping[Device, int]
    elsewhere: int
    conv_ane: int | None
    conv_total: int | None
    compile_time: Mapping[str, int]
    boundary_casts: int
    off: tuple[tuple[str, PlannedOperation], ...]
    outcome: Outcome
    reasons: tuple[str, ...]

    @property
    def unassigned(self) -> int:
        """Compute ops without a device."""
        return sum(operation.preferred is None for _, operation in self.off)

    @property
    def compute(self) -> int:
        """Compute ops, with a device or without."""
        return sum(self.devices.values()) + self.elsewhere + self.unassigned

    @property
    def line(self) -> str:
        """All counts in one line."""
        return " · ".join(_parts(self))


def summarise(plan: Plan) -> Summary:
    """Count a plan; only preferred devices are placement, eligibility is not looked at."""
    compile_time: Counter[str] = Counter()
    devices: Counter[Device] = Counter()
    convs: Counter[bool] = Counter()
    casts, off, typed = 0, [], False
    for function, one in plan.walk():
        typed = typed or one.op is not None
        if one.op == "const" or (one.op or "").startswith("constexpr_"):
            compile_time[str(one.op)] += 1
            continue
        if one.boundary:
            casts += 1
            continue
        if one.op == "conv":
            convs[one.preferred == "ANE"] += 1
        if one.preferred:
            devices[one.preferred] += 1
        if one.preferred != "ANE":
            off.append((function, one))
    elsewhere = 0
    for tally in plan.tallies:
        if tally.op is None:
            devices["ANE"] += tally.ane
            elsewhere += tally.total - tally.ane
        elif tally.op == "conv":
            convs[True] += tally.ane
            convs[False] += tally.total - tally.ane
        typed = typed or tally.op is not None
    outcome, reasons = _judged(plan, devices, elsewhere, off)
    return Summary(
        dict(devices),
        elsewhere,
        convs[True] if typed else None,
        convs.total() if typed else None,
        dict(sorted(compile_time.items(), key=lambda item: (-item[1], item[0]))),
        casts,
        tuple(off),
        outcome,
        reasons,
    )


def judge(plan: Plan, *, subject: str) -> Verdict:
    """The placement verdict of a plan: `unproven` where it proves nothing."""
    found = summarise(plan)
    return Verdict(
        gate="placement",
        subject=subject,
        status=_STATUS[found.outcome],
        # What is wrong comes first: a table may have no room for more.
        summary=" · ".join((*(reason.rstrip(".") for reason in found.reasons[:1]), found.line)),
        reasons=found.reasons,
        facts={
            "instrument": "plan",
            "format": plan.source,
            "outcome": found.outcome,
            "compute_ops": found.compute,
            "ane_ops": found.devices.get("ANE", 0),
            "unassigned_ops": found.unassigned,
            "boundary_casts": found.boundary_casts,
        },
        details=tuple(listing(found, limit=_SHOWN)),
    )


def explain(plan: Plan) -> Iterator[str]:
    """The plan in lines for people: the counts, what they prove, and what is not on the ANE."""
    found = summarise(plan)
    yield found.line
    units = f" · compute units {plain(plan.compute_units)}" if plan.compute_units else ""
    yield f"{found.outcome} (plan, {plan.source}{units})"
    yield from found.reasons
    yield from listing(found)
    for message in plan.messages:
        kind = "failure" if message.failure else "note"
        yield f"line {message.line}: {kind}: {plain(message.meaning)}"
        yield f"  {plain(message.text)}"
    if plan.experimental:
        yield EXPERIMENTAL


def listing(summary: Summary, *, limit: int | None = None) -> Iterator[str]:
    """The compute ops that are not on the ANE, at most `limit`, the rest counted."""
    for function, one in summary.off[:limit]:
        name = f" `{plain(one.name)}`" if one.name else ""
        where = f" in {plain(function)}" if function not in ("", "main") else ""
        at = one.preferred or "no device"
        able = f" (supported: {', '.join(one.supported)})" if one.supported else ""
        yield f"  {plain(one.op or 'operation')}{name}{where}: {at}{able}"
    if limit is not None and len(summary.off) > limit:
        yield f"  ... and {len(summary.off) - limit:,} more"


def _judged(
    plan: Plan,
    devices: Mapping[Device, int],
    elsewhere: int,
    off: list[tuple[str, PlannedOperation]],
) -> tuple[Outcome, tuple[str, ...]]:
    lost = [one for _, one in off if one.preferred is None]
    assigned = sum(devices.values()) + elsewhere
    if why := _inconclusive(plan, assigned, lost):
        return "inconclusive", (why,)
    reasons = []
    if away := assigned - devices.get("ANE", 0):
        reasons.append(f"{_ops(away)} not on the ANE, of {assigned + len(lost):,}.")
    if lost:
        named = plain(lost[0].name or lost[0].op or "?")
        reasons.append(f"{_ops(len(lost))} without a device, `{named}` first.")
    return ("not resident" if reasons else "resident"), tuple(reasons)


def _inconclusive(plan: Plan, assigned: int, lost: list[PlannedOperation]) -> str | None:
    if plan.source in ("espresso", "log"):
        return "A log does not say where operations run; record a compute plan."
    if failed := next((one for one in plan.messages if one.failure), None):
        return f"The file records a failure on line {failed.line}: {plain(failed.meaning)}"
    if plan.unmatched:
        first = plain(plan.unmatched[0])
        return (
            f"{_ops(len(plan.unmatched))} of the plan not in the package, `{first}` first; give "
            "the .mlmodelc the plan was made of, or record the plan again."
        )
    if not assigned and lost and plan.extra.get(RETRIED) is True:
        return (
            "No operation has a device, nor in a copy at another path: Core ML's caches are "
            "broken; restart the Mac and ask again."
        )
    if not assigned and lost:
        return (
            "No operation has a device: that is a broken cache, no placement; copy the compiled "
            "model to another path and record the plan again."
        )
    if not assigned:
        return "The plan places no compute op; record it again."
    if any(one.op is None for one in lost):
        return (
            f"{_ops(len(lost))} without a device, of unknown type: constants are among such; "
            "give --package."
        )
    if not plan.tallies and all(one.op is None for _, one in plan.walk()):
        return (
            "The plan names neither types nor what it leaves out, so that an operation without a "
            "device would go unseen; give --package."
        )
    return None


def _parts(found: Summary) -> Iterator[str]:
    if found.conv_total is None or found.conv_ane is None:
        yield "conv_ane=? conv_non_ane=?"
    else:
        off = found.conv_total - found.conv_ane
        yield f"conv_ane={found.conv_ane}/{found.conv_total} conv_non_ane={off}"
    yield f"compute {found.devices.get('ANE', 0)}/{found.compute} ANE"
    if found.elsewhere:
        yield f"{found.elsewhere} on GPU or CPU"
    else:
        yield f"GPU {found.devices.get('GPU', 0)}"
        yield f"CPU {found.devices.get('CPU', 0)}"
    if found.unassigned:
        yield f"{found.unassigned} without a device"
    if found.compile_time:
        kinds = ", ".join(f"{count} {plain(kind)}" for kind, count in found.compile_time.items())
        yield f"{sum(found.compile_time.values())} compile-time ({kinds})"
    if found.boundary_casts:
        yield f"{found.boundary_casts} boundary cast{'s' if found.boundary_casts > 1 else ''}"


def _ops(count: int) -> str:
    return "1 operation is" if count == 1 else f"{count:,} operations are"
