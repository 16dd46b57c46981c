"""Speculative decoding in words: what it would take, and what it took."""

from __future__ import annotations

import numpy as np

from pytest_ane.gates.throughput.breakeven import BreakEven
from pytest_ane.gates.throughput.counters import Speculated
from pytest_ane.gates.throughput.trial import Trial


def break_even(found: BreakEven) -> str:
    """The tokens and drafts that a call needs, or why none is enough."""
    needs = f"break-even: a call must yield {found.tokens_needed:.2f} tokens"
    if found.share_needed is None or found.acceptance_needed is None:
        return (
            f"{needs}, and one of width {found.width} yields at most {found.width}: unreachable, "
            f"at best {found.best:.2f}x; below {_ms(found.most_tv)} a call it would be reachable"
        )
    if found.tokens_needed <= 1:
        return (
            f"{needs}, and every call yields one: it pays whatever the drafts; at best "
            f"{found.best:.2f}x, all accepted"
        )
    return (
        f"{needs}: {found.share_needed:.1%} of all drafts accepted, or each with probability "
        f"{found.acceptance_needed:.2f} if independent; at best {found.best:.2f}x, all accepted"
    )


def costs(trial: Trial) -> str:
    """What a plain step and a call cost."""
    cost = trial.cost
    return (
        f"plain: {_ms(cost.t1)} a token, {1 / cost.t1:.2f} tok/s "
        f"({_times(len(trial.plain.steps), 'step')}) · verifier of width {cost.width}: "
        f"{_ms(cost.tv)} a call ({_times(len(trial.calls), 'call')})"
    )


def counters(found: Speculated) -> str:
    """The counters in one line, as published logs have them."""
    share = "none" if found.acceptance is None else f"{found.acceptance:.1%}"
    return (
        f"verifier_calls={found.verifier_calls} drafted={found.drafted} "
        f"accepted={found.accepted} fallbacks={found.fallbacks} acceptance={share} "
        f"replayed={len(found.replays)}"
    )


def outcome(trial: Trial) -> str:
    """The speed reached, against plain steps, and against what its counters predict."""
    calls = trial.found.calls
    again = len(trial.found.replays)
    ties = f"; without {again} steps again {trial.without_ties:.2f}x" if again else ""
    a_call = f"{_ms(float(np.median(calls)))} a call, " if calls else ""
    return (
        f"speculative: {a_call}{trial.tok_s:.2f} tok/s, {trial.speedup:.2f}x plain; "
        f"predicted {trial.predicted:.2f} tok/s ({trial.predicted / trial.tok_s - 1:+.1%}){ties}"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"


def _times(count: int, name: str) -> str:
    return f"median of {count} {name}s" if count > 1 else f"1 {name}"
