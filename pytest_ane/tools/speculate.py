"""`pytest-ane speculate`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from pytest_ane.cli.options import add_stack, count, positive
from pytest_ane.cli.output import Output, tell
from pytest_ane.mlprogram.errors import ExecutionError, ManifestError

if TYPE_CHECKING:
    from pytest_ane.probes.recording import TokenPrompt
    from pytest_ane.project.models import OpenModel
    from pytest_ane.tools._speculate import Trial

EXAMPLE = "pytest-ane speculate --prompt facts --width 4 --tokens 40"
_WIDEST = 1 << 16
_CHARTED = 32
"""Widest call whose yield is told beside the measured one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the prompt, and the shape of a verifier call."""
    add_stack(parser)
    parser.add_argument("--prompt", metavar="NAME", help="a golden prompt (default: the first)")
    parser.add_argument(
        "--prompt-ids", type=_ids, metavar="ID,...", help="token ids, such as 2,42, as the prompt"
    )
    parser.add_argument(
        "--width",
        type=int,
        default=4,
        metavar="N",
        help="positions of a call: the last token and N - 1 drafts (default: 4)",
    )
    parser.add_argument(
        "--tokens", type=int, default=40, metavar="N", help="to decode (default: 40)"
    )
    parser.add_argument(
        "--margin", type=float, metavar="X", help="of two logits, below which a tie is near"
    )
    parser.add_argument(
        "--ngram-min",
        type=count,
        default=2,
        metavar="N",
        help="tokens at the end of the text that must have occurred before (default: 2)",
    )
    parser.add_argument(
        "--times",
        type=positive,
        nargs=2,
        metavar=("T1", "TV"),
        help="only the break-even, of these milliseconds of a step and of a call",
    )


def _ids(text: str) -> tuple[int, ...]:
    try:
        ids = tuple(map(int, text.split(",")))
    except ValueError:
        ids = ()
    if not ids or min(ids) < 0:
        raise argparse.ArgumentTypeError(f"{text} is no list of token ids, such as 2,42")
    return ids


def run(options: argparse.Namespace) -> Output:
    """Plain and speculative decoding of one prompt, and the break-even between them.

    Raises:
        AneError: one sentence.
    """
    from pytest_ane.project import process as threads

    threads.choose()
    from pytest_ane.tools import _speculate as report
    from pytest_ane.tools._speculate import BreakEven

    width, tokens, margin = options.width, options.tokens, options.margin
    _check(width, tokens, margin, options.prompt, options.prompt_ids)
    if options.times is not None:
        t1, tv = (ms / 1000 for ms in options.times)
        cost = BreakEven(t1, tv, width)
        yield report.break_even(cost)
        return {"command": "speculate", "cost": cost}
    from pytest_ane.manifest import Prompt
    from pytest_ane.tools._speculate import MARGIN, Lookup, run_trial, yield_of
    from pytest_ane.tools._stack import open_stack

    def check(opened: OpenModel) -> None:
        _check_model(opened, options.prompt, width, tokens)

    ids, limit = options.prompt_ids, MARGIN if margin is None else margin
    own = Prompt(name="prompt-ids", ids=ids, greedy=0) if ids else None
    with open_stack(options.manifest, options.model, options.cache, check, own) as stack:
        chosen = _chosen(stack.prompts, options.prompt)
        backend = stack.provenance["backend"]
        # Of one thread, so that seconds of the processor are its own, whoever else runs.
        alone = backend == "cpu" and os.environ.get("OPENBLAS_NUM_THREADS") == "1"
        timer = time.process_time if alone else time.perf_counter
        trial = run_trial(
            stack.chain, chosen.ids, tokens, width, limit, options.ngram_min, tell, timer
        )
        tell("")
        yield (
            f"{stack.model}, prompt {chosen.name!r}: {len(chosen.ids)} tokens, then {tokens} "
            f"greedy ones · backend {backend}, {'processor' if alone else 'wall'} time"
        )
        yield report.costs(trial)
        yield report.break_even(trial.cost)
        yield report.counters(trial.speculated)
        yield report.outcome(trial)
        yield _same(trial, limit)
    about = {"command": "speculate", "model": stack.model, "prompt": chosen.name}
    widths = [
        yield_of(chosen.ids, trial.tokens, each, Lookup(options.ngram_min))
        for each in _widths(width)
    ]
    figures = {
        "provenance": stack.provenance,
        "widths": widths,
        "cost": trial.cost,
        "tok_s": trial.tok_s,
        "speedup": trial.speedup,
    }
    return {**about, **vars(trial), **figures}


def _widths(width: int) -> Sequence[int]:
    """Widths of which the yield is told: as many again as the one that was measured."""
    return range(2, min(2 * width, _CHARTED) + 1)


def _same(trial: Trial, margin: float) -> str:
    """That both gave the same tokens; `ExecutionError` where they did not."""
    if (at := trial.differs) is not None:
        raise ExecutionError(
            f"Token {at + 1} is {trial.speculated.tokens[at]}, and {trial.tokens[at]} in plain "
            f"decoding: a wide call moved a lead by more than {margin:g}; give a larger --margin."
        )
    return f"the same {len(trial.tokens)} tokens as plain decoding"


def _check(
    width: int,
    tokens: int,
    margin: float | None,
    prompt: str | None,
    prompt_ids: tuple[int, ...] | None,
) -> None:
    """Check the options that need no model."""
    from pytest_ane.tools._speculate import check_width

    check_width(width, None, goes_on=True)
    if width > _WIDEST:
        raise ExecutionError(f"--width {width}: no call has so many positions; give at most 65536.")
    if tokens < 2:
        raise ExecutionError(
            f"--tokens {tokens}: the first token comes from the prompt; give a number from 2 on."
        )
    if margin is not None and not (isfinite(margin) and margin >= 0):
        raise ExecutionError(f"--margin {margin}: give a difference of logits, 0 or above.")
    if prompt is not None and prompt_ids is not None:
        raise ManifestError("Give either --prompt or --prompt-ids, not both.")


def _check_model(opened: OpenModel, name: str | None, width: int, tokens: int) -> None:
    """Check the options against the model, before anything is built."""
    from pytest_ane.models.chain import check_fits
    from pytest_ane.tools._speculate import check_width

    model = opened.model
    names = [prompt.name for prompt in model.prompts]
    if name is not None and name not in names:
        raise ManifestError(
            f"--prompt {name}: {model.name} has no such golden prompt; there is: "
            f"{', '.join(names)}."
        )
    layouts = (opened.language_model.layout(wire.shard) for wire in opened.wiring)
    goes_on = all(layout.sees != "call" for layout in layouts)
    check_width(width, model.max_tokens, goes_on=goes_on)
    check_fits(opened.language_model.positions, _chosen(opened.prompts, name).ids, tokens)


def _chosen(prompts: Sequence[TokenPrompt], name: str | None) -> TokenPrompt:
    return next(prompt for prompt in prompts if name in (prompt.name, None))
