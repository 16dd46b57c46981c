"""Timing behind the benchmark fixtures: pytest-benchmark times, `extra_info` says of what."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy.typing as npt
import pytest
from pytest_benchmark.session import PerformanceRegression

from pytest_ane.gates.throughput import machine
from pytest_ane.gates.throughput.speed import KEY, Speed, What
from pytest_ane.make import Artifact
from pytest_ane.manifest import Input, Model, Prompt, Shard
from pytest_ane.mlprogram.errors import ExecutionError, UnprovenError
from pytest_ane.mlprogram.records import Feature
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.models.chain import Decoding
from pytest_ane.models.families import Layout
from pytest_ane.plugin import _workspace as workspace
from pytest_ane.plugin._options import is_compared, is_given, is_requested
from pytest_ane.probes.package import seeded_inputs
from pytest_ane.probes.seeded import gaussian, generator
from pytest_ane.project.models import OpenModel
from pytest_ane.project.stack import Stack
from pytest_ane.report.throughput import lines

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from pytest_ane.backends import Runner
    from pytest_ane.plugin._workspace import Workspace


ROUNDS: dict[What, int] = {"load": 10, "call": 50, "decode": 32}
"""Rounds of a run, however long they take; of decoding a round is a token."""
_WARM_UP = 2
"""Rounds before those that are timed; the first ones touch every weight for the first time."""
CONFIRM = pytest.StashKey[Callable[[], tuple[float, ...]]]()
"""On a test: times the same rounds once more; returns their seconds."""
_NO_PROMPT = (1, 2, 3, 4)
"""Token ids to decode from where the manifest has no prompts; no speed depends on them."""
Tokens: TypeAlias = int | Literal["max"]
"""Positions of a call: a number, or as many as the shard takes."""
_SEED = 0


class CallInputs(NamedTuple):
    """Arrays by name, and the positions T of a call; 0 where the package does not tell."""

    inputs: Mapping[str, npt.NDArray[Any]]
    tokens: int


def hidden_inputs(layout: Layout, tokens: int) -> CallInputs:
    """Hidden states `[T, C]` of RMS 1 at positions 0 to T - 1 of a sequence."""
    return CallInputs(layout.inputs(gaussian(generator(_SEED), (tokens, layout.width)), 0), tokens)


def package_inputs(
    features: tuple[Feature, ...], artifact: Path, tokens: Tokens,
    tables: Mapping[str, Input] | None = None, function: str | None = None,
) -> CallInputs:  # fmt: skip
    """Seeded inputs of a package without a family, at an end of its range, as `tables` says.

    Where all its flexible axes have one length, that is taken to be T. A package of fixed shapes
    is called as it is, with `max`. `ExecutionError` where it has no such T, `ProgramError` where it
    takes something else than tensors.
    """
    smallest = tokens != "max"
    inputs = seeded_inputs(features, artifact, _SEED, tables, function=function, smallest=smallest)
    lengths = {
        extent
        for feature in features
        # The channels of an image are no axis of its range.
        for extent, (low, high) in zip(inputs[feature.name].shape, feature.extents, strict=False)
        if low != high
    }
    length = lengths.pop() if len(lengths) == 1 else 0
    if tokens not in ("max", length):
        takes = f"{length} at least" if length else "inputs of fixed shapes"
        raise ExecutionError(
            f"{artifact}: it cannot be timed at T={tokens}, for it takes {takes}; time 'max'."
        )
    return CallInputs(inputs, length)


@dataclass
class Stopwatch:
    benchmark: Any
    node: pytest.Item
    space: Workspace

    def load(self, shard: Shard, artifact: Artifact) -> Speed:
        backend = self.space.backend
        if (model := self._opened(shard)) is not None:
            inputs: Any = hidden_inputs(model.layout(shard), 1).inputs
        else:
            features = backend.load(artifact.path, shard.function).model.inputs
            inputs = seeded_inputs(
                features, artifact.path, 0, shard.inputs, function=shard.function, smallest=True
            )

        def load() -> None:
            runner = backend.load(artifact.path, shard.function)
            runner.predict(inputs, runner.make_state())

        return self._of_shard("load", shard, artifact, load)

    def call(self, shard: Shard, artifact: Artifact, tokens: Tokens = 1) -> Speed:
        runner = self.space.backend.load(artifact.path, shard.function)
        call = self._inputs(shard, artifact, runner, tokens)
        state = runner.make_state()
        return self._of_shard(
            "call", shard, artifact, lambda: runner.predict(call.inputs, state), call.tokens
        )

    def decode(
        self, stack: Stack, prompt: str | Sequence[int] | None = None, count: int = ROUNDS["decode"]
    ) -> Speed:
        ids, chain = self._prompt(stack.model, prompt), stack.chain
        if chain.embeds:
            pytest.skip(f"{stack.model} is an encoder, which continues no text")
        # cProfile takes a step of its own.
        more = _WARM_UP + (self.node.config.getoption("benchmark_cprofile") is not None)
        if chain.positions is not None and prompt is None:
            # A short context is used as far as it goes.
            count = max(min(count, chain.positions - len(ids) - more), 1)
        timer = self.benchmark._timer
        return self._timed(
            lambda: Decoding(chain, ids, 1 + more + count, timer),
            count,
            "decode",
            profile=lambda decoding: decoding.profile(count),
            what="decode",
            subject=stack.model,
            tokens=1,
            artifacts={shard.id: artifact.digest for shard, artifact in stack.artifacts},
            prompt=ids,
            counts=Counter(step.wire.kind for step in chain.steps),
        )

    def _of_shard(
        self,
        what: What,
        shard: Shard,
        artifact: Artifact,
        call: Callable[[], object],
        tokens: int = 0,
    ) -> Speed:
        opened, config, rounds = self._opened(shard), self.node.config, ROUNDS[what]
        kinds = {wire.shard: wire.kind for wire in opened.wiring} if opened else {}
        if is_given(config, "--benchmark-min-rounds"):
            rounds = int(config.getoption("benchmark_min_rounds"))
        return self._timed(
            lambda: call,
            rounds,
            f"T={tokens}" if tokens else what,
            what=what,
            subject=shard.qualified,
            kind=kinds.get(shard.id, ""),
            tokens=tokens,
            artifacts={shard.id: artifact.digest},
        )

    def _timed(
        self,
        begin: Callable[[], Any],
        rounds: int,
        label: str,
        *,
        profile: Callable[[Any], dict[str, float]] = lambda _: {},
        **fields: Any,
    ) -> Speed:
        """Time rounds of what `begin` returns; `fields` are those of the `Speed`."""
        benchmark, timer, subject = self.benchmark, self.benchmark._timer, fields["subject"]
        # They are stored with the run: a shard or model by its name.
        benchmark.params = {
            name: value.qualified if isinstance(value, Shard | Model) else value
            for name, value in (benchmark.params or {}).items()
        }
        benchmark.group = benchmark.group or f"{subject.partition(':')[0]} {label}"
        state, call = machine.state(self.space.backend), begin()
        if benchmark.disabled:
            benchmark.pedantic(call)
            self._not_timed(subject)
        # Seconds of another clock than wall time are other seconds.
        clock = {"timer": f"{timer.__module__}.{timer.__name__}"}
        before = machine.control(timer)
        benchmark.pedantic(call, rounds=rounds, warmup_rounds=_WARM_UP)
        speed = Speed(
            seconds=tuple(benchmark.stats.stats.data),
            control=(before + machine.control(timer)) / 2,
            identity=self.space.identity | ({} if timer is time.perf_counter else clock),
            state=state,
            profile=profile(call),
            **fields,
        )

        def confirm() -> tuple[float, ...]:
            # As `pedantic` does, which may be called once only.
            run = benchmark._make_runner(begin(), (), {})
            return tuple(run(range(1)) for _ in range(_WARM_UP + rounds))[_WARM_UP:]

        self.node.stash[CONFIRM] = confirm
        benchmark.extra_info[KEY] = speed.to_json()
        return speed

    def _not_timed(self, subject: str) -> None:
        """Skip; unproven where a limit was asked for, unless an option switched timing off."""
        option, policy = self.node.config.getoption, self.space.policy_of(subject).throughput
        if option("benchmark_disable") and not option("benchmark_enable"):
            pytest.skip("run once and not timed: --benchmark-disable")
        why = "pytest-benchmark is off under xdist"
        limits = policy.max_regression, policy.min_tok_s
        if not is_compared(self.node.config) and all(limit is None for limit in limits):
            pytest.skip(f"run once and not timed: {why}")
        raise UnprovenError(f"{subject} was not timed: {why}; leave -n out.")

    def _inputs(
        self, shard: Shard, artifact: Artifact, runner: Runner, tokens: Tokens
    ) -> CallInputs:
        if (model := self._opened(shard)) is None:
            try:
                return package_inputs(
                    runner.model.inputs, artifact.path, tokens, shard.inputs, shard.function
                )
            except ExecutionError as error:
                if tokens != 1:
                    raise
                pytest.skip(str(error))
        return hidden_inputs(model.layout(shard), shard.max_tokens if tokens == "max" else tokens)

    def _opened(self, shard: Shard) -> OpenModel | None:
        model = self.space.model(shard.model) if shard.family else None
        return model if isinstance(model, OpenModel) else None

    def _prompt(self, name: str, prompt: str | Sequence[int] | None) -> tuple[int, ...]:
        opened = self.space.model(name)
        assert isinstance(opened, OpenModel)  # A builder's shards are no chain.
        if prompt is not None and not isinstance(prompt, str):
            try:
                return opened.token_ids(Prompt(name="ids", ids=tuple(prompt), greedy=0))
            except ValueError:
                raise ExecutionError(f"{prompt!r} are no token ids; give one or more.") from None
        prompts = {golden.name: golden.ids for golden in opened.prompts}
        if prompt is None:
            return next(iter(prompts.values()), _NO_PROMPT)
        if prompt not in prompts:
            known = ", ".join(prompts) or "none"
            raise ExecutionError(f"{name} has no golden prompt {prompt!r}; there are: {known}.")
        return prompts[prompt]


class BenchReport:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._regressed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_terminal_summary(
        self, terminalreporter: TerminalReporter
    ) -> Generator[None, object, object]:
        """Write the table below pytest-benchmark's, whose regression is no traceback."""
        try:
            result = yield
        except (PerformanceRegression, pytest.UsageError) as error:
            result, self._regressed = None, True
            terminalreporter.write_line(printable(f"pytest-benchmark: {error}"), red=True)
        if (judged := workspace.of(self._config).speeds) and self._config.get_verbosity() >= -1:
            everything = self._config.get_verbosity() > 0
            terminalreporter.write_sep("=", "ane throughput")
            for line in lines(judged, everything=everything):
                terminalreporter.write_line(printable(line, LONGEST))
        if self._compared_nothing():
            terminalreporter.write_line("--benchmark-compare: nothing was compared", red=True)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """A regression of other tests is an exit code, and so is a comparison with nothing."""
        result = yield
        if self._regressed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._compared_nothing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        return result

    def _compared_nothing(self) -> bool:
        config = self._config
        if not is_requested(config) or config.option.collectonly:
            return False
        benchmarks = config._benchmarksession.benchmarks  # type: ignore[attr-defined]
        others = any(KEY not in benchmark.extra_info for benchmark in benchmarks)
        speeds = workspace.of(config).speeds
        return not others and not any("change" in verdict.values for _, verdict in speeds)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_benchmark_compare_machine_info(self) -> Generator[None, object, object]:
        """Let a run lie elsewhere, which `FileStorage.location` (5.3) cannot name."""
        with suppress(ValueError):
            return (yield)
        return None
