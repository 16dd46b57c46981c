"""`pytest-ane speculate`: measure whether drafts by prompt lookup make decoding faster."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from functools import partial
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING

from pytest_ane.cli.options import add_stack, count, positive
from pytest_ane.cli.output import Output, tell
from pytest_ane.mlprogram.errors import ExecutionError, ManifestError

if TYPE_CHECKING:
    from pytest_ane.project.models import OpenModel
    from pytest_ane.tools._speculate import BreakEven, Trial

EXAMPLE = "pytest-ane speculate --prompt facts --width 4 --tokens 40"
_CHARTED = 32
"""Widest call whose yield is told beside the measured one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the prompt, and the shape of a verifier call."""
    add = parser.add_argument
    add_stack(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="NAME", help="a golden prompt (default: the first)")
    prompt.add_argument(
        "--prompt-ids", type=_ids, metavar="ID,...", help="token ids, such as 2,42, as the prompt"
    )
    words = "positions of a call: the last token and N - 1 drafts (default: 4)"
    add("--width", type=count, default=4, metavar="N", help=words)
    add("--tokens", type=count, default=40, metavar="N", help="to decode (default: 40)")
    add("--margin", type=float, metavar="X", help="of two logits, below which a tie is near")
    words = "tokens at the end of the text that must have occurred before (default: 2)"
    add("--ngram-min", type=count, default=2, metavar="N", help=words)
    words = "only the break-even, of these milliseconds of a step and of a call"
    add("--times", type=positive, nargs=2, metavar=("T1", "TV"), help=words)


def _ids(text: str) -> tuple[int, ...]:
    ids = text.split(",")
    if not all(id.isdecimal() for id in ids):
        raise argparse.ArgumentTypeError(f"{text} is no list of token ids, such as 2,42")
    return tuple(map(int, ids))


def run(options: argparse.Namespace) -> Output:
    """Plain and speculative decoding of one prompt, and the break-even between them."""
    from pytest_ane.project import process

    process.choose()
    from pytest_ane.manifest import Prompt
    from pytest_ane.models.chain import check_fits
    from pytest_ane.tools import _speculate as measured
    from pytest_ane.tools._stack import open_stack

    width, tokens, name, ids = options.width, options.tokens, options.prompt, options.prompt_ids
    margin = measured.MARGIN if options.margin is None else options.margin
    measured.check_width(width)
    if tokens < 2:
        raise ExecutionError("--tokens 1: the first token comes from the prompt; give 2 or more.")
    if not (isfinite(margin) and margin >= 0):
        raise ExecutionError(f"--margin {margin}: give a difference of logits, 0 or above.")
    if options.times is not None:
        t1, tv = (ms / 1000 for ms in options.times)
        cost = measured.BreakEven(t1, tv, width)
        yield break_even(cost)
        return {"command": "speculate", "cost": cost}

    def check(opened: OpenModel) -> None:
        """Refuse what the model cannot take before anything is built."""
        named = [prompt.ids for prompt in opened.prompts if name in (prompt.name, None)]
        if not named:
            raise ManifestError(
                f"--prompt {name}: {opened.model.name} has no such golden prompt; there is: "
                f"{', '.join(prompt.name for prompt in opened.model.prompts)}."
            )
        layouts = (opened.language_model.layout(wire.shard) for wire in opened.wiring)
        goes_on = all(layout.sees != "call" for layout in layouts)
        measured.check_width(width, opened.model.max_tokens, goes_on=goes_on)
        check_fits(opened.language_model.positions, named[0], tokens)

    own = Prompt(name="prompt-ids", ids=ids, greedy=0) if ids else None
    with open_stack(options.manifest, options.model, options.cache, check, own) as stack:
        prompt = next(each for each in stack.prompts if name in (each.name, None))
        backend = stack.provenance["backend"]
        # Of one thread, so that seconds of the processor are its own, whoever else runs.
        alone = backend == "cpu" and os.environ.get("OPENBLAS_NUM_THREADS") == "1"
        timer = time.process_time if alone else time.perf_counter
        trial = measured.run_trial(
            stack.chain, prompt.ids, tokens, width, margin, options.ngram_min, timer
        )
        tell("")
        yield (
            f"{stack.model}, prompt {prompt.name!r}: {len(prompt.ids)} tokens, then {tokens} "
            f"greedy ones · backend {backend}, {'processor' if alone else 'wall'} time"
        )
        yield from lines(trial)
        if (at := trial.differs) is not None:
            raise ExecutionError(
                f"Token {at + 1} is {trial.speculated.tokens[at]}, and {trial.tokens[at]} in plain "
                f"decoding: a wide call moved a lead by more than {margin:g}; give a larger "
                "--margin."
            )
        yield f"the same {len(trial.tokens)} tokens as plain decoding"
    # As many widths again as the one that was measured.
    draft = partial(measured.lookup, shortest=options.ngram_min)
    widths = [
        measured.yield_of(prompt.ids, trial.tokens, each, draft)
        for each in range(2, min(2 * width, _CHARTED) + 1)
    ]
    return {
        "command": "speculate",
        "model": stack.model,
        "prompt": prompt.name,
        **vars(trial),
        "provenance": stack.provenance,
        "widths": widths,
        "cost": trial.cost,
        "tok_s": trial.tok_s,
        "speedup": trial.speedup,
    }


def break_even(cost: BreakEven) -> str:
    """The tokens and drafts that a call needs, or that none is enough."""
    needs = f"break-even: a call must yield {cost.tokens_needed:.2f} tokens"
    if cost.share_needed is None or cost.acceptance_needed is None:
        return f"{needs}, more than its width {cost.width}: unreachable, at best {cost.best:.2f}x"
    return (
        f"{needs}: {cost.share_needed:.1%} of all drafts accepted, or each with probability "
        f"{cost.acceptance_needed:.2f} if independent; at best {cost.best:.2f}x, all accepted"
    )


def lines(trial: Trial) -> Iterator[str]:
    """The cost of a step and a call, the break-even, the counters, and the speed reached."""
    cost, counted = trial.cost, trial.speculated
    yield (
        f"plain: {_ms(cost.t1)} a token, {1 / cost.t1:.2f} tok/s (median of {len(trial.steps)} "
        f"steps) · verifier of width {cost.width}: {_ms(cost.tv)} a call (median of "
        f"{len(trial.calls)} calls)"
    )
    yield break_even(cost)
    share = "none" if counted.acceptance is None else f"{counted.acceptance:.1%}"
    yield (
        f"verifier_calls={len(counted.calls)} drafted={counted.drafted} "
        f"accepted={counted.accepted} fallbacks={len(counted.steps)} acceptance={share} "
        f"replayed={len(counted.replays)}"
    )
    a_call = f"{_ms(median(counted.calls))} a call, " if counted.calls else ""
    yield (
        f"speculative: {a_call}{trial.tok_s:.2f} tok/s, {trial.speedup:.2f}x plain; "
        f"predicted {trial.predicted:.2f} tok/s ({trial.predicted / trial.tok_s - 1:+.1%})"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
