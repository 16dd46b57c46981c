"""Speculative decoding in words: what it would take, and what it took."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_ane.throughput.breakeven import BreakEven
from pytest_ane.throughput.counters import Speculated


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


def costs(steps: Sequence[float], calls: Sequence[float], width: int) -> str:
    """What a plain step and a call cost: medians of seconds."""
    t1, tv = float(np.median(steps)), float(np.median(calls))
    return (
        f"plain: {_ms(t1)} a token, {1 / t1:.2f} tok/s ({_times(len(steps), 'step')}) · "
        f"verifier of width {width}: {_ms(tv)} a call ({_times(len(calls), 'call')})"
    )


def counters(found: Speculated) -> str:
    """The counters in one line, as published logs have them."""
    share = "none" if found.acceptance is None else f"{found.acceptance:.1%}"
    return (
        f"verifier_calls={found.verifier_calls} drafted={found.drafted} "
        f"accepted={found.accepted} fallbacks={found.fallbacks} acceptance={share} "
        f"replayed={len(found.replays)}"
    )


def outcome(found: Speculated, cost: BreakEven) -> str:
    """The speed reached, against plain steps, and against what its counters predict."""
    speed = (len(found.tokens) - 1) / found.seconds
    predicted = cost.tok_s(
        found.verifier_calls, found.accepted, found.fallbacks, len(found.replays)
    )
    a_call = f"{_ms(float(np.median(found.calls)))} a call, " if found.calls else ""
    return (
        f"speculative: {a_call}{speed:.2f} tok/s, {speed * cost.t1:.2f}x plain; "
        f"predicted {predicted:.2f} tok/s ({predicted / speed - 1:+.1%})"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"


def _times(count: int, name: str) -> str:
    return f"median of {count} {name}s" if count > 1 else f"1 {name}"
