"""One shard in an otherwise exact stack: what its error alone does to the logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_ane.chain.chain import Chain, ChainStep
from pytest_ane.chain.golden import GoldenPrompt
from pytest_ane.families import Streams, apply_output, shard_input
from pytest_ane.metrics.logits import kl


class Alone:
    """An exact chain that has run over the golden prompts up to every step.

    A stack in which one step is another then has to be run from there only.
    """

    def __init__(self, chain: Chain, golden: Sequence[GoldenPrompt]) -> None:
        self._chain = chain
        self._golden = golden
        self._before: list[list[Streams]] = []
        for prompt in golden:
            streams: Streams = {"x": chain.embed(prompt.ids)}
            before = []
            for step in chain.steps:
                before.append(dict(streams))
                _through(step, streams)
            self._before.append(before)

    def kl(self, step: ChainStep) -> float:
        """Mean KL(reference || stack) in nats with this step in place of the exact one.

        Position 0 of every prompt is left out, as the behaviour gate does.
        """
        index = next(i for i, s in enumerate(self._chain.steps) if s.shard == step.shard)
        found: list[float] = []
        for prompt, before in zip(self._golden, self._before, strict=True):
            streams = dict(before[index])
            for each in (step, *self._chain.steps[index + 1 :]):
                _through(each, streams)
            pair = (x[1:].astype(np.float64) for x in (prompt.logits, streams["logits"]))
            found += kl(*pair).tolist()
        return float(np.mean(found))


def _through(step: ChainStep, streams: Streams) -> None:
    apply_output(streams, step.wire, step.open()(shard_input(streams, step.wire)))
