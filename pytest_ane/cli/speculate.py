"""`pytest-ane speculate`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.core.errors import ExecutionError, ManifestError
from pytest_ane.project import threads

if TYPE_CHECKING:
    from pytest_ane.gates.throughput.speculate import Trial
    from pytest_ane.probes.recording import TokenPrompt
    from pytest_ane.project.models import OpenModel

_WIDEST = 1 << 16


def run(
    manifest: Path | None,
    model: str | None,
    cache: Path | None,
    *,
    prompt: str | None,
    prompt_ids: tuple[int, ...] | None,
    width: int,
    tokens: int,
    margin: float | None,
    ngram_min: int,
    times: Sequence[float] | None,
) -> Iterator[str]:
    """Plain and speculative decoding of one prompt, and the break-even between them.

    Args:
        manifest: default `shards.toml` here.
        model: its name; may be left out where the manifest has one whole model.
        cache: the cache folder.
        prompt: a golden prompt's name; default: the first.
        prompt_ids: token ids in place of a golden prompt.
        width: positions of a verifier call: the last token and `width - 1` drafts.
        tokens: to decode.
        margin: leads below it are near ties; default: `speculate.MARGIN`.
        ngram_min: smallest n-gram at the end of the text that drafts come from.
        times: milliseconds of a plain step and of a call, instead of a model.

    Raises:
        AneError: one sentence.
    """
    threads.choose()
    from pytest_ane.gates.throughput.breakeven import BreakEven
    from pytest_ane.report import speculate as report

    _check(width, tokens, margin, prompt, prompt_ids)
    if times is not None:
        t1, tv = (ms / 1000 for ms in times)
        yield report.break_even(BreakEven(t1, tv, width))
        return
    from pytest_ane.cli.stack import open_stack
    from pytest_ane.cli.status import tell
    from pytest_ane.gates.throughput.speculate import MARGIN, run_trial
    from pytest_ane.manifest import Prompt

    def check(opened: OpenModel) -> None:
        _check_model(opened, prompt, width, tokens)

    own = Prompt(name="prompt-ids", ids=prompt_ids, greedy=0) if prompt_ids else None
    limit = MARGIN if margin is None else margin
    with open_stack(manifest, model, cache, check, own) as stack:
        chosen = _chosen(stack.prompts, prompt)
        backend = stack.provenance["backend"]
        # Of one thread, so that seconds of the processor are its own, whoever else runs.
        alone = backend == "cpu" and os.environ.get("OPENBLAS_NUM_THREADS") == "1"
        timer = time.process_time if alone else time.perf_counter
        trial = run_trial(stack.chain, chosen.ids, tokens, width, limit, ngram_min, tell, timer)
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
    from pytest_ane.gates.throughput.speculate import check_width

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
    from pytest_ane.chain.decode import check_fits
    from pytest_ane.gates.throughput.speculate import check_width

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
