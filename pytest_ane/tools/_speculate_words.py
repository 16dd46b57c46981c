"""Speculative decoding in words: the break-even, the counters, and the speed reached."""

from __future__ import annotations

import numpy as np

from pytest_ane.gates.throughput.breakeven import BreakEven
from pytest_ane.tools._speculate_analysis import Speculated, Trial


def break_even(cost: BreakEven) -> str:
    """The tokens and drafts that a call needs, or why none is enough."""
    needs = f"break-even: a call must yield {cost.tokens_needed:.2f} tokens"
    if cost.share_needed is None or cost.acceptance_needed is None:
        return (
            f"{needs}, and one of width {cost.width} yields at most {cost.width}: unreachable, "
            f"at best {cost.best:.2f}x; below {_ms(cost.most_tv)} a call it would be reachable"
        )
    if cost.tokens_needed <= 1:
        return (
            f"{needs}, and every call yields one: it pays whatever the drafts; at best "
            f"{cost.best:.2f}x, all accepted"
        )
    return (
        f"{needs}: {cost.share_needed:.1%} of all drafts accepted, or each with probability "
        f"{cost.acceptance_needed:.2f} if independent; at best {cost.best:.2f}x, all accepted"
    )


def costs(trial: Trial) -> str:
    """The cost of a plain step and of a call."""
    cost = trial.cost
    return (
        f"plain: {_ms(cost.t1)} a token, {1 / cost.t1:.2f} tok/s "
        f"({_times(len(trial.steps), 'step')}) · verifier of width {cost.width}: "
        f"{_ms(cost.tv)} a call ({_times(len(trial.calls), 'call')})"
    )


def counters(counted: Speculated) -> str:
    """The counters in one line, as published logs have them."""
    share = "none" if counted.acceptance is None else f"{counted.acceptance:.1%}"
    return (
        f"verifier_calls={counted.verifier_calls} drafted={counted.drafted} "
        f"accepted={counted.accepted} fallbacks={counted.fallbacks} acceptance={share} "
        f"replayed={len(counted.replays)}"
    )


def outcome(trial: Trial) -> str:
    """The speed reached, against plain steps, and against the prediction of its counters."""
    calls, replays = trial.speculated.calls, len(trial.speculated.replays)
    ties = f"; without {replays} steps again {trial.without_ties:.2f}x" if replays else ""
    a_call = f"{_ms(float(np.median(calls)))} a call, " if calls else ""
    return (
        f"speculative: {a_call}{trial.tok_s:.2f} tok/s, {trial.speedup:.2f}x plain; "
        f"predicted {trial.predicted:.2f} tok/s ({trial.predicted / trial.tok_s - 1:+.1%}){ties}"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"


def _times(count: int, name: str) -> str:
    return f"median of {count} {name}s" if count > 1 else f"1 {name}"
