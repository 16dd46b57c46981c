"""The placement verdict where no device is at hand: a policy's system applied to a forecast."""

from __future__ import annotations

from pytest_ane.core.verdict import Status, Verdict
from pytest_ane.gates.placement.forecast import Forecast
from pytest_ane.gates.placement.text import NOTE, by_rule, listing, reason, summary

_SHOWN = 10
_STATUS: dict[str, Status] = {
    "ineligible": "failed",
    "eligible": "passed",
    "unproven": "unproven",
}
_EMPTY = (
    "The program has no compute op, so there is nothing to place; check that the artifact is the "
    "one that was built."
)


def judge(forecast: Forecast, *, subject: str, os: str) -> Verdict:
    """What the forecast says of a shard on a system.

    Args:
        forecast: the measurement.
        subject: qualified shard id, such as `smollm2:L01`.
        os: the system the shard is for, such as `macOS 26`; it decides the size rule.

    Returns:
        `failed` if a rule keeps an op or the whole program off the ANE, `unproven` if there was
        no compute op to ask about, else `passed`, with the note that this is a forecast.

    Raises:
        ManifestError: `os` names no system.
    """
    judged = forecast.under(os)
    reasons = tuple(reason(rule, found) for rule, found in by_rule(judged.of("ineligible")))
    if judged.outcome == "unproven":
        reasons = (_EMPTY,)
    return Verdict(
        gate="placement",
        subject=subject,
        status=_STATUS[judged.outcome],
        summary=summary(judged),
        reasons=reasons,
        facts=_facts(judged, os),
        details=(
            *listing(judged, "ineligible", limit=_SHOWN),
            *listing(judged, "warned", limit=_SHOWN),
            NOTE,
        ),
    )


def _facts(forecast: Forecast, os: str) -> dict[str, float | int | str]:
    return {
        "instrument": "forecast",
        "outcome": forecast.outcome,
        "os": os,
        "compute_ops": forecast.compute_ops,
        "ineligible_ops": forecast.ineligible(),
        "warned_ops": forecast.warned(),
        "conv_eligible": forecast.eligible("conv"),
        "conv_total": forecast.compute.get("conv", 0),
        "left_out_ops": sum(forecast.left_out.values()),
        "size_bytes": forecast.size_bytes,
        "rules": " ".join(sorted({finding.rule for finding in forecast.of("ineligible")})),
    }
