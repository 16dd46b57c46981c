"""A model as the behaviour gate takes it: all artifacts loaded and chained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pytest_ane.backends import Backend
from pytest_ane.gates.arithmetics import simulator
from pytest_ane.make import Artifact
from pytest_ane.manifest import Shard
from pytest_ane.manifest.ids import without_function
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.chain import Chain, ChainStep
from pytest_ane.models.families import Wire, optional, trait
from pytest_ane.probes.exact_chain import GoldenPrompt, reference_chain
from pytest_ane.project._package_chain import ShardSequence
from pytest_ane.project.models import OpenModel


class Stack:
    """A whole model as the behaviour gate measures it, in one arithmetic; opened when first used.

    `subject` is the model with this arithmetic, `policy` what it must reach; `artifacts` has every
    shard with its package, in the manifest's order; `states` and `decode` are as of `OpenModel`.
    `UnprovenError` where a device cannot run them in the ANE's arithmetic of the executor.
    """

    def __init__(
        self,
        opened: OpenModel,
        artifacts: Sequence[tuple[Shard, Artifact]],
        backend: Backend,
        arithmetic: Arithmetic = "typed",
    ) -> None:
        self.model: str = opened.model.name
        self.subject = opened.model.in_arithmetic((arithmetic,))
        self.policy: BehaviourPolicy = opened.model.policy.behaviour
        self.artifacts = tuple(artifacts)
        self.arithmetic = arithmetic
        self.states, self.decode = opened.states, opened.decode
        self._opened, self._backend = opened, backend
        self._simulator = simulator(backend) if arithmetic == "ane" else None

    @cached_property
    def chain(self) -> Chain:
        """All artifacts, loaded and chained in running order."""
        return self._chain(self._simulator or self._backend)

    @cached_property
    def typed(self) -> Chain:
        """The same as the programs' types say."""
        return self._chain(self._backend) if self._simulator else self.chain

    @property
    def rules(self) -> RuleShares:
        """By which of the ANE's rules `chain` computed so far."""
        return self._simulator.rule_shares if self._simulator else RuleShares()

    def _chain(self, backend: Backend) -> Chain:
        self._opened.check_whole()
        model = self._opened.language_model
        packages = {without_function(s.id)[0]: (s, a) for s, a in self.artifacts}
        limit = self._opened.model.max_tokens

        def step(wire: Wire) -> ChainStep:
            layout = self._opened.layout(packages[wire.shard][0])

            def residual(hidden: Sequence[FloatArray]) -> list[FloatArray] | None:
                path = optional(model, "residual", wire.shard)
                return path(hidden) if path is not None else None

            runner = self._opened.load(backend, *packages[wire.shard])
            return ChainStep(
                wire,
                lambda: ShardSequence(runner, layout, limit),
                layout.sees,
                residual=residual,
                causal=trait(layout, "causal"),
            )

        return Chain(model.embed, tuple(map(step, self._opened.wiring)), positions=model.positions)

    @cached_property
    def reference(self) -> Chain:
        """The float32 modules in the artifacts' place; weights of one shard at a time."""
        return reference_chain(self._opened.language_model, self._opened.wiring, lazy=True)

    @property
    def golden(self) -> Sequence[GoldenPrompt]:
        """The reference's logits and greedy text for the golden prompts."""
        return self._opened.golden

    @property
    def has_states(self) -> bool:
        """Whether the reference tells what enters and leaves every shard."""
        return self._opened.has_states

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The backend's, and every artifact's digest."""
        backend = self._simulator or self._backend
        return backend.provenance() | {s.id: a.digest for s, a in self.artifacts}
