"""Chains in which some shards are exact: the float32 reference in place of the artifact."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_ane.chain.chain import Chain, Step
from pytest_ane.chain.forced import States
from pytest_ane.chain.golden import Golden
from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import LanguageModel, Streams, Wire, apply_output, shard_input


def exact_chain(chain: Chain, reference: Chain, exact: Collection[str]) -> Chain:
    """`chain` with the steps of `reference` for the shards in `exact`.

    A reference keeps no state, so an exact shard takes a sequence at once unless its positions
    do not see each other.

    Raises:
        ValueError: a shard is in none of the chains, or their wires differ.
    """
    if [step.wire for step in chain.steps] != [step.wire for step in reference.steps]:
        raise ValueError("the chains are wired differently")
    if unknown := set(exact) - {step.shard for step in chain.steps}:
        raise ValueError(f"no shard {min(unknown)} in the chain")

    def choose(own: Step, other: Step) -> Step:
        if own.shard not in exact:
            return own
        return replace(other, sees="itself" if own.sees == "itself" else "call")

    return replace(chain, steps=tuple(map(choose, chain.steps, reference.steps)))


def lazy_reference(model: LanguageModel, wiring: Sequence[Wire]) -> Chain:
    """The float32 modules as a chain that holds the weights of one shard at a time.

    They are read whenever a step runs, so give it many sequences at once.
    """

    def step(wire: Wire) -> Step:
        def together(sequences: Sequence[FloatArray]) -> list[FloatArray]:
            return model.reference(wire.shard)(sequences) if sequences else []

        return Step(wire, lambda: lambda hidden: together([hidden])[0], together=together)

    return Chain(model.embed, tuple(map(step, wiring)))


@dataclass(frozen=True, eq=False)
class Alone:
    """One artifact on the exact states of every golden prompt.

    Attributes:
        streams: what is exact before it, by prompt.
        own: its outputs `[T, C]`; `exact` those of the reference.
    """

    step: Step
    streams: list[Streams]
    own: list[FloatArray]
    exact: list[FloatArray]


def each_alone(chain: Chain, golden: Sequence[Golden], states: States) -> Iterator[Alone]:
    """Every shard on recorded states, blocks first; no reference runs."""
    streams: list[Streams] = [{"x": chain.embed(g.ids)} for g in golden]
    for step in chain.blocks:
        exact = [states(g.name, step.shard)[1] for g in golden]
        yield Alone(step, list(map(dict, streams)), _outputs(step, streams), exact)
        for one, given in zip(streams, exact, strict=True):
            apply_output(one, step.wire, given)
    start = 0
    for step in chain.steps:
        if step.is_head:
            own = _outputs(step, streams)
            end = start + own[0].shape[1] if own else start
            exact = [g.logits[:, start:end] for g in golden]
            yield Alone(step, list(map(dict, streams)), own, exact)
            start = end


def run_all(step: Step, streams: Sequence[Streams]) -> None:
    """Let a shard take from and give to the streams of several sequences."""
    for one, given in zip(streams, _outputs(step, streams), strict=True):
        apply_output(one, step.wire, given)


def _outputs(step: Step, streams: Sequence[Streams]) -> list[FloatArray]:
    return step.all([shard_input(one, step.wire) for one in streams])
