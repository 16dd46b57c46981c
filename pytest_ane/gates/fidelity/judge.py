"""The fidelity gate's opinion: policy applied to a measurement. Pure, and quick."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.fidelity.bounds import broken, probes
from pytest_ane.gates.fidelity.comparison import Comparison, Fidelity
from pytest_ane.gates.fidelity.said import details, facts, share, summary
from pytest_ane.manifest import FidelityPolicy, OutputPolicy


def judge(fidelity: Fidelity, policy: FidelityPolicy, subject: str) -> Verdict:
    """Passed only if something was compared and everything compared is close and finite."""
    if not fidelity.comparisons:
        reason = "No probe was run, so nothing was compared; name probe kinds in shards.toml."
        return Verdict(
            "fidelity", subject, "unproven", "nothing was compared", (reason,),
            provenance=fidelity.provenance,
        )  # fmt: skip
    reasons = tuple(_reasons(fidelity, policy))
    return Verdict(
        gate="fidelity",
        subject=subject,
        status="failed" if reasons else "passed",
        summary=summary(fidelity),
        reasons=reasons,
        facts=facts(fidelity),
        details=details(fidelity),
        provenance=fidelity.provenance,
    )


def _reasons(fidelity: Fidelity, policy: FidelityPolicy) -> Iterator[str]:
    outputs = list(dict.fromkeys(c.output for c in fidelity.comparisons))
    for name in policy.outputs.keys() - {*outputs}:
        yield (
            f"policy.fidelity.outputs names {name!r}, and the outputs are {', '.join(outputs)}; "
            "correct the name."
        )
    for c in fidelity.comparisons:
        if not _finite(c, policy):
            yield (
                f"{c.probe}: {share(1 - c.finite)} of output {c.output} is NaN or infinite "
                f"(largest input {c.input_max:,.1f}; fp16 squares overflow above 255.9)."
            )
        if c.one_zero and fidelity.compared:
            yield (
                f"{c.probe}: output {c.output} is zero on one side only at {_at(c.one_zero)}"
                f"{_routed(c)}."
            )
        if c.one_adds:
            yield (
                f"{c.probe}: output {c.output} adds to the residual path on one side only at "
                f"{_at(c.one_adds)}, as a shard does that returns its input."
            )
    if not fidelity.compared:
        return
    finite = [_defined(c) for c in fidelity.comparisons if _finite(c, policy)]
    others = [c for c in fidelity.comparisons if not _finite(c, policy)]
    count = probes([c for c in (*finite, *others) if c.rest.live])
    if count < policy.min_live_probes:
        yield (
            f"{count} of {probes(fidelity.comparisons)} probes were live (the rest gave zeros, or "
            f"are position 0 alone), policy asks for {policy.min_live_probes}: too little was "
            "compared."
        )
    groups: dict[OutputPolicy, list[Comparison]] = {}
    for c in finite:
        groups.setdefault(policy.of_output(c.output), []).append(c)
    for limits, group in groups.items():
        yield from broken(group, limits, several=len(outputs) > 1)


def _finite(c: Comparison, policy: FidelityPolicy) -> bool:
    """Whether an output has no more NaN and infinities than its policy allows."""
    return 1 - c.finite <= (policy.of_output(c.output).max_non_finite or 0.0)


def _defined(c: Comparison) -> Comparison:
    """Without the positions that are not finite, where the policy allows those."""
    spoilt = {*c.spoilt}
    return c.at(lambda position: position not in spoilt) if spoilt else c


def _routed(c: Comparison) -> str:
    """The experts that were active in the reference, at the positions that are named."""
    if not c.experts:
        return ""
    active = sorted({expert for experts in c.experts[:_SHOWN] for expert in experts})
    if not active:
        return ", where no expert of this shard is active in the reference"
    word = "experts" if len(active) > 1 else "expert"
    verb = "are" if len(active) > 1 else "is"
    return f", where {word} {', '.join(map(str, active))} {verb} active in the reference"


_SHOWN = 5


def _at(positions: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, positions[:_SHOWN]))
    more = len(positions) - _SHOWN
    return f"position {shown}" + (f" and {more} more" if more > 0 else "")
