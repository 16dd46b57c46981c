"""Forecasts and plans for the commands that show them: `pytest-ane explain` and `plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_ane.gates.placement import Forecast, judge
from pytest_ane.gates.placement.plans import Plan, Summary, analytics, plain, summarise
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.report.verdict import details, reasons, remarks, row


def explain(forecast: Forecast, os: str = "macOS 26", width: int | None = None) -> Iterator[str]:
    """The whole forecast: the verdict, what was counted, and every rule that applies.

    Args:
        forecast: the measurement.
        os: the system the package is for.
        width: of the terminal, None in a pipe.

    Raises:
        ManifestError: `os` names no system.
    """
    verdict = judge(forecast, PlacementPolicy.model_construct(os=os), "package")
    yield row(verdict)
    yield from (f"  - {reason}" for reason in reasons(verdict))
    if verdict.status != "passed":
        yield from remarks(verdict)
    if forecast.compute:
        yield f"compute ops: {_counts(forecast.compute)}"
    if forecast.left_out:
        yield f"not counted: {_counts(forecast.left_out)}"
    yield from details(verdict, width)


def explain_plan(plan: Plan, width: int | None = None) -> Iterator[str]:
    """A recorded plan: the counts, what they prove, and what is not on the ANE."""
    verdict, summary = judge(plan, PlacementPolicy(), "plan"), summarise(plan)
    yield " · ".join(_counted(summary))
    units = f" · compute units {plain(plan.compute_units)}" if plan.compute_units else ""
    yield f"{summary.outcome} (plan, {plan.source}{units})"
    yield from (f"  - {reason}" for reason in reasons(verdict))
    yield from details(verdict, width)
    if estimates := analytics.path_ms(plan) if plan.source == "analytics" else None:
        placed, most = estimates
        yield (
            f"Core ML's estimates: {placed:.4f} ms as placed, {most:.4f} ms with every "
            "supported op on the ANE, launches and switches included"
        )
    for message in plan.messages:
        kind = "failure" if message.failure else "note"
        yield f"line {message.line}: {kind}: {plain(message.meaning)}"
        yield f"  {plain(message.text)}"


def _counted(summary: Summary) -> Iterator[str]:
    """`conv_ane=36/36 conv_non_ane=0`, compute ops by device, and what was not counted."""
    if summary.conv_total is None or summary.conv_ane is None:
        yield "conv_ane=? conv_non_ane=?"
    else:
        off = summary.conv_total - summary.conv_ane
        yield f"conv_ane={summary.conv_ane}/{summary.conv_total} conv_non_ane={off}"
    yield f"compute {summary.devices.get('ANE', 0)}/{summary.compute} ANE"
    if summary.elsewhere:
        yield f"{summary.elsewhere} on GPU or CPU"
    else:
        yield f"GPU {summary.devices.get('GPU', 0)}"
        yield f"CPU {summary.devices.get('CPU', 0)}"
    if summary.unassigned:
        yield f"{summary.unassigned} without a device"
    if summary.compile_time:
        total = sum(summary.compile_time.values())
        yield f"{total} compile-time ({_counts(summary.compile_time)})"
    if summary.folded:
        yield f"{summary.folded} folded by the compiler"
    if summary.added:
        yield f"added by the compiler {_counts(summary.added)}"
    if summary.renamed:
        yield f"{summary.renamed} renamed by the compiler"
    if summary.boundary_casts:
        yield f"{summary.boundary_casts} boundary op{'s' if summary.boundary_casts > 1 else ''}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {plain(kind)}" for kind, count in counts.items())
