"""`pytest-ane speculate`: measure whether drafts by prompt lookup make decoding faster."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from pytest_ane.cli.options import add_stack, count, positive
from pytest_ane.cli.output import Output, tell
from pytest_ane.mlprogram.errors import ExecutionError

if TYPE_CHECKING:
    from pytest_ane.project.models import OpenModel

EXAMPLE = "pytest-ane speculate --prompt facts --width 4 --tokens 40"
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
    from pytest_ane.manifest import Prompt
    from pytest_ane.tools import _speculate as analysis
    from pytest_ane.tools._stack import open_stack

    width, tokens, name, ids = options.width, options.tokens, options.prompt, options.prompt_ids
    analysis.check_options(width, tokens, options.margin, name, ids)
    if options.times is not None:
        t1, tv = (ms / 1000 for ms in options.times)
        cost = analysis.BreakEven(t1, tv, width)
        yield analysis.break_even(cost)
        return {"command": "speculate", "cost": cost}
    margin = analysis.MARGIN if options.margin is None else options.margin
    own = Prompt(name="prompt-ids", ids=ids, greedy=0) if ids else None

    def check(opened: OpenModel) -> None:
        analysis.check_model(opened, name, width, tokens)

    with open_stack(options.manifest, options.model, options.cache, check, own) as stack:
        prompt = analysis.chosen(stack.prompts, name)
        backend = stack.provenance["backend"]
        # Of one thread, so that seconds of the processor are its own, whoever else runs.
        alone = backend == "cpu" and os.environ.get("OPENBLAS_NUM_THREADS") == "1"
        timer = time.process_time if alone else time.perf_counter
        trial = analysis.run_trial(
            stack.chain, prompt.ids, tokens, width, margin, options.ngram_min, tell, timer
        )
        tell("")
        yield (
            f"{stack.model}, prompt {prompt.name!r}: {len(prompt.ids)} tokens, then {tokens} "
            f"greedy ones · backend {backend}, {'processor' if alone else 'wall'} time"
        )
        yield from analysis.lines(trial)
        if (at := trial.differs) is not None:
            raise ExecutionError(
                f"Token {at + 1} is {trial.speculated.tokens[at]}, and {trial.tokens[at]} in plain "
                f"decoding: a wide call moved a lead by more than {margin:g}; give a larger "
                "--margin."
            )
        yield f"the same {len(trial.tokens)} tokens as plain decoding"
    # As many widths again as the one that was measured.
    widths = [
        analysis.yield_of(prompt.ids, trial.tokens, each, analysis.Lookup(options.ngram_min))
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
