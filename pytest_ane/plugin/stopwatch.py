"""What the benchmark fixtures do: pytest-benchmark times rounds, and `extra_info` says of what."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.build import Artifact
from pytest_ane.chain.decode import Stepper, Timer
from pytest_ane.core.errors import AneError, ExecutionError, UnprovenError
from pytest_ane.gates.throughput import machine
from pytest_ane.gates.throughput.calls import Call, Tokens, hidden_call, package_call
from pytest_ane.gates.throughput.speed import KEY, Speed, What
from pytest_ane.gates.throughput.yardstick import Timing, Yardstick
from pytest_ane.manifest import Shard
from pytest_ane.plugin import bench_options
from pytest_ane.probes.package import seeded_inputs
from pytest_ane.project.models import OpenModel
from pytest_ane.project.stack import Stack

if TYPE_CHECKING:
    from pytest_ane.backends import Runner
    from pytest_ane.plugin.workspace import Workspace

STEPS = 32
"""Tokens that are decoded, each a round."""
_WARM = 3
"""Steps that are taken before; the first ones touch every weight for the first time."""
_SHARE = 0.4
"""Of `--benchmark-max-time`, for one benchmark of one shard: there are many shards."""
_MOST, _FEWEST = 200, 10
"""Rounds of a call, however short it is; and of a part of a batch."""
AGAIN = pytest.StashKey[Callable[[], Speed]]()
"""On a test: times the rounds again."""
_YARDSTICK = pytest.StashKey[Yardstick]()
_NO_PROMPT = (1, 2, 3, 4)
"""What is decoded from where the manifest has no prompts; no speed depends on what it says."""


@dataclass
class Stopwatch:
    """One test's `benchmark` fixture, in a run's workspace."""

    benchmark: Any
    node: pytest.Item
    space: Workspace
    _used: bool = False

    @property
    def config(self) -> pytest.Config:
        """The run's."""
        return self.node.config

    def used(self, timing: Callable[[], Speed]) -> Speed:
        """The speed; of an error before anything was timed pytest-benchmark is told, too.

        Otherwise it would add a complaint that its fixture was not used.
        """
        try:
            return timing()
        except AneError as error:
            if not self._used:
                self.benchmark.pedantic(_raise, (error,))
            raise

    def load(self, shard: Shard, artifact: Artifact) -> Speed:
        """Load a shard and predict once, as often as time allows."""
        backend = self.space.backend
        inputs = self._shortest(shard, artifact)

        def load() -> None:
            runner = backend.load(artifact.path)
            runner.predict(inputs, runner.make_state())

        return self._timed(lambda: load, "load", shard.qualified, {shard.id: artifact.digest})

    def call(self, shard: Shard, artifact: Artifact, tokens: Tokens = 1) -> Speed:
        """Predict `tokens` positions at the start of a sequence, as often as time allows."""
        runner = self.space.backend.load(artifact.path)
        call = self._call(shard, artifact, runner, tokens)
        state = runner.make_state()

        def predict() -> None:
            runner.predict(call.inputs, state)

        return self._timed(
            lambda: predict,
            "call",
            shard.qualified,
            {shard.id: artifact.digest},
            tokens=call.tokens,
            label=f"T={call.tokens}" if call.tokens else "call",
        )

    def decode(self, stack: Stack, prompt: str | None = None, count: int = STEPS) -> Speed:
        """Decode greedily through all shards, a token a round, after a prompt by name."""
        ids, chain = self._ids(stack.model, prompt), stack.chain
        # cProfile is given a step of its own.
        beside = _WARM + (self.config.getoption("benchmark_cprofile") is not None)
        if chain.positions is not None and prompt is None:
            # A short context is used as far as it goes.
            count = max(min(count, chain.positions - len(ids) - beside), 1)
        timer = self.benchmark._timer
        artifacts = {shard.id: artifact.digest for shard, artifact in stack.artifacts}
        return self._timed(
            lambda: Stepper(chain, ids, 1 + beside + count, timer),
            "decode",
            stack.model,
            artifacts,
            tokens=1,
            rounds=count,
            warm=_WARM,
            prompt=ids,
            more=lambda step: {
                "profile": step.profile(count),
                "counts": Counter(one.wire.kind for one in chain.steps),
            },
        )

    def _timed(
        self,
        begin: Callable[[], Any],
        what: What,
        subject: str,
        artifacts: dict[str, str],
        *,
        tokens: int = 0,
        rounds: int | None = None,
        warm: int = 0,
        label: str = "",
        prompt: tuple[int, ...] = (),
        more: Callable[[Any], dict[str, Any]] = lambda _: {},
    ) -> Speed:
        """Time rounds of what `begin` gives; pytest-benchmark's fixture is good for one batch."""
        now, call = machine.state(self.space.backend), begin()
        if rounds is None:
            rounds = self._rounds(call)
        # They are stored with the run: a shard by its name.
        self.benchmark.params = {
            name: value.qualified if isinstance(value, Shard) else value
            for name, value in (self.benchmark.params or {}).items()
        }
        if self.benchmark.group is None:
            self.benchmark.group = f"{subject.partition(':')[0]} {label or what}"
        self._used = True
        if self.benchmark.disabled:
            self.benchmark.pedantic(call, rounds=rounds, warmup_rounds=warm)
            self._not_timed(subject)
        pedantic = self.benchmark.pedantic
        beside = self._beside(
            lambda look: pedantic(call, setup=look, rounds=rounds, warmup_rounds=warm), subject
        )
        speed = Speed(
            what=what,
            subject=subject,
            tokens=tokens,
            seconds=tuple(self.benchmark.stats.stats.data),
            yardstick=beside,
            identity=self.space.identity | _other_timer(self.benchmark._timer),
            state=now,
            artifacts=artifacts,
            prompt=prompt,
            **more(call),
        )

        def again() -> Speed:
            call, took = begin(), list[float]()
            timer = self.benchmark._timer

            def batch(look: Callable[[], None]) -> None:
                took.extend(_batch(call, rounds, warm, timer, look))

            beside = self._beside(batch, subject)
            new = {"seconds": _quickest(took), "yardstick": beside}
            return speed.model_copy(update=new | more(call))

        self.node.stash[AGAIN] = again
        self.benchmark.extra_info[KEY] = speed.to_json()
        return speed

    def _beside(self, timing: Timing, subject: str) -> float | None:
        """Time something; what the machine's yardstick took beside it, which no device heeds."""
        limited = bench_options.has_limit(self.config, self.space, subject)
        calm = limited or bench_options.recording(self.config)
        if self.space.backend.on_device:
            timing(lambda: None)
            return None
        if (yardstick := self.config.stash.get(_YARDSTICK, None)) is None:
            yardstick = self.config.stash[_YARDSTICK] = Yardstick()
        return yardstick.around(timing, self.benchmark._timer, calm=calm)

    def _not_timed(self, subject: str) -> None:
        """Skip, or leave unproven what was to be compared.

        Raises:
            UnprovenError: a limit was asked for, and nobody asked not to measure.
        """
        why = bench_options.off(self.config)
        if why == bench_options.BY_OPTION or not bench_options.has_limit(
            self.config, self.space, subject
        ):
            pytest.skip(f"run once and not timed: {why}")
        raise UnprovenError(
            f"{subject} was not timed: {why}; leave -n out.", summary=f"not timed: {why}"
        )

    def _call(self, shard: Shard, artifact: Artifact, runner: Runner, tokens: Tokens) -> Call:
        if (model := self._opened(shard)) is None:
            try:
                return package_call(runner.inputs, artifact.path, tokens)
            except ExecutionError as error:
                if tokens != 1:
                    raise
                pytest.skip(str(error))
        return hidden_call(model.layout(shard), shard.max_tokens if tokens == "max" else tokens)

    def _shortest(self, shard: Shard, artifact: Artifact) -> Any:
        if (model := self._opened(shard)) is not None:
            return hidden_call(model.layout(shard), 1).inputs
        runner = self.space.backend.load(artifact.path)
        return seeded_inputs(runner.inputs, artifact.path, 0, smallest=True)

    def _opened(self, shard: Shard) -> OpenModel | None:
        """The model of a family's shard, which knows its host side."""
        model = self.space.model(shard.model) if shard.family else None
        return model if isinstance(model, OpenModel) else None

    def _ids(self, name: str, prompt: str | None) -> tuple[int, ...]:
        opened = self.space.model(name)
        assert isinstance(opened, OpenModel)  # A builder's shards are no chain.
        prompts = {one.name: one.ids for one in opened.prompts}
        if prompt is None:
            return next(iter(prompts.values()), _NO_PROMPT)
        if prompt not in prompts:
            known = ", ".join(prompts) or "none"
            raise ExecutionError(f"{name} has no golden prompt {prompt!r}; there are: {known}.")
        return prompts[prompt]

    def _rounds(self, call: Callable[[], None]) -> int:
        """How many fit, by the second of two runs: the first one may have to compile."""
        if self.benchmark.disabled:
            return 1
        call()
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        room = _SHARE * float(self.config.getoption("benchmark_max_time"))
        least = int(self.config.getoption("benchmark_min_rounds"))
        return max(least, min(_MOST, math.ceil(room / max(seconds, 1e-9))))


def _batch(
    call: Callable[[], None],
    rounds: int,
    warm: int,
    timer: Timer,
    look: Callable[[], None],
) -> Iterator[float]:
    """Seconds of each round, as pytest-benchmark takes them."""
    for _ in range(warm):
        call()
    for _ in range(rounds):
        look()
        start = timer()
        call()
        yield timer() - start


def _quickest(seconds: Sequence[float]) -> tuple[float, ...]:
    """The quarter of a batch whose median is least, of ten rounds at least."""
    size = max(_FEWEST, math.ceil(len(seconds) / 4))
    parts = [seconds[i : i + size] for i in range(0, max(len(seconds) - size, 0) + 1, size)]
    return tuple(min(parts, key=median))


def _other_timer(timer: Timer) -> dict[str, str]:
    """Another clock than wall time: its seconds are other seconds."""
    if timer is time.perf_counter:
        return {}
    return {"timer": f"{timer.__module__}.{timer.__name__}"}


def _raise(error: AneError) -> None:
    raise error
