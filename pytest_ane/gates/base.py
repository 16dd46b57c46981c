"""What a gate is: a question, a measurement that answers it, and a judge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from pytest_ane.backends import Backend
from pytest_ane.gates.verdict import Figure, Limits, Verdict
from pytest_ane.gates.words import GATE_WORDS
from pytest_ane.make import Artifact
from pytest_ane.manifest import Model, Policy, Shard
from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares
from pytest_ane.mlprogram.records import MLModel, Pipeline
from pytest_ane.models.chain import Chain
from pytest_ane.models.families import Ports
from pytest_ane.probes.cases import Case
from pytest_ane.probes.error_budget import ErrorBudget
from pytest_ane.probes.exact_chain import GoldenPrompt, ReferenceStates

M = TypeVar("M")
Subject: TypeAlias = Shard | Model
"""What a gate is asked about; both have `qualified` names and a `policy`."""
Environment: TypeAlias = Mapping[str, str]


class GateTest(NamedTuple):
    """One test of a gate: its key in runs, ledgers and clusters.

    Its subject is a shard's qualified id or a model's name, its arithmetic `typed` also where the
    gate's measurement does not depend on it.
    """

    gate: str
    subject: str
    arithmetic: Arithmetic = "typed"

    @property
    def id(self) -> str:
        """As pytest has it in brackets: `smollm2:L01`, or `smollm2:L01-ane`."""
        return self.subject if self.arithmetic == "typed" else f"{self.subject}-{self.arithmetic}"

    @property
    def part(self) -> str:
        """What reports call it, of several of a gate and subject: empty, or `[ane]`."""
        return "" if self.arithmetic == "typed" else f"[{self.arithmetic}]"

    def __str__(self) -> str:
        return f"{self.gate} of {self.id}"


@dataclass(frozen=True, order=True)
class Move:
    """An operation that two measurements of the same bytes place differently.

    Attributes:
        function, op, name: which operation; `name` is that of its first output.
        old, new: `ANE`, `GPU`, `CPU` or `none`; `folded` where the compiler left it out, `absent`
            where the measurement does not list it.
    """

    function: str
    op: str
    name: str
    old: str
    new: str


class ShardContext(Protocol):
    """What measuring a shard takes; everything is made when first asked for."""

    @property
    def shard(self) -> Shard:
        """The shard, with its policy resolved."""

    @property
    def artifact(self) -> Artifact:
        """Its package: the user's own, or built."""

    @property
    def program(self) -> MLModel | Pipeline:
        """The package's program, or pipeline of such; weights are not decoded."""

    @property
    def backend(self) -> Backend:
        """What runs artifacts."""

    def cases(self) -> list[Case]:
        """Every probe with what the shard's reference makes of it."""

    def budget(self) -> ErrorBudget | str:
        """What function, fp16 and compression cost by themselves, or why nobody can tell."""

    def ports(self) -> Ports | None:
        """What its family or builder declares; None where neither is asked."""

    def converted(self) -> Path | None:
        """What its family makes of it, uncompressed: of a package of the user's held to that."""


class ModelContext(Protocol):
    """What measuring a whole model takes.

    Attributes:
        arithmetic: in which `chain` computes.
        chain: all artifacts, loaded, in running order; `typed` computes as their types say.
        rules: by which of the ANE's rules `chain` computed so far.
        golden: what the reference says to the golden prompts.
        has_states: whether the reference tells the hidden states in `states`.
        decode: spells token ids.
    """

    arithmetic: Arithmetic
    chain: Chain
    typed: Chain
    rules: RuleShares
    golden: Sequence[GoldenPrompt]
    states: ReferenceStates
    has_states: bool
    decode: Callable[[Sequence[int]], str]
    provenance: Mapping[str, Any]


class Gate(ABC, Generic[M]):
    """One kind of question. There is one instance of each, in `pytest_ane.gates.GATES`.

    Attributes:
        name: as in `policy.<name>`, `test_<name>.py` and evidence files.
        scope: what it is asked about.
        marker: which of pytest's markers its tests have.
        measurement: the record that evidence files hold; what `judge` takes besides it, such as a
            forecast, is no evidence.
        recordable: whether evidence of another machine may answer it.
        by_device: whether its answer depends on the device; else any machine's evidence counts.
        by_arithmetic: whether its measurement depends on the executor's arithmetic; then each that
            the subject's `arithmetic` names has a test of its own.
        static: whether it takes no run of the artifact, so that anybody measures it quickly.
        recorded_first: whether recorded evidence goes before what can be measured without a device.
        of_pipelines: whether it is asked about a whole pipeline, besides each ML Program in it.
        requires: what `policy.<name>.require` asks for, in words: `a device`.
        derived: figures of its verdicts that are no measurement, for they compare with another run,
            repeat the policy or sum up; the memory of many runs leaves them out.
        answers: which of the questions that people ask first; `right` by a reference, `sound`
            without one.
    """

    name: ClassVar[str]
    scope: ClassVar[Literal["shard", "model"]] = "shard"
    marker: ClassVar[Literal["gate", "bench"]] = "gate"
    measurement: ClassVar[type[Any]]
    recordable: ClassVar[bool] = True
    by_device: ClassVar[bool] = True
    by_arithmetic: ClassVar[bool] = False
    static: ClassVar[bool] = False
    recorded_first: ClassVar[bool] = False
    of_pipelines: ClassVar[bool] = True
    requires: ClassVar[str] = "a device"
    derived: ClassVar[tuple[str, ...]] = ()
    answers: ClassVar[Literal["right", "sound", "place", "size", "speed", ""]] = ""

    @property
    def aliases(self) -> tuple[str, ...]:
        """The users' other words for it."""
        return GATE_WORDS.get(self.name, ())

    def asks(self, subject: Subject) -> bool:
        """Whether it has a question about a shard or model of its scope."""
        return self.of_pipelines or not getattr(subject, "pipeline", False)

    def subjects(self, subject: Subject, *, simulates: bool) -> tuple[Subject, ...]:
        """A shard or model as its tests ask about it: one for each arithmetic, if that matters.

        A device computes in an arithmetic of its own, so where the CPU executor does not simulate,
        and where a device's evidence alone counts, there is one test.
        """
        if not self.by_arithmetic:
            return (subject,)
        simulates &= not subject.policy.requires_evidence(self.name)
        arithmetics = subject.arithmetic if simulates else ("typed",)
        return tuple(subject.in_arithmetic((arithmetic,)) for arithmetic in arithmetics)

    def test(self, subject: Subject) -> GateTest:
        """The test that asks about one of `subjects`."""
        arithmetic = subject.arithmetic[0] if self.by_arithmetic else "typed"
        return GateTest(self.name, subject.qualified, arithmetic)

    def policy(self, policy: Policy) -> Any:
        """Its table of a subject's policy."""
        return getattr(policy, self.name)

    def question(self, subject: Any, model: Model, source: Callable[[], str]) -> dict[str, Any]:
        """What decides a measurement besides artifact and machine, as JSON data.

        Recorded evidence counts only if its question is today's. `source` gives the digest of what
        the float32 reference is made of, and is called where that is used.
        """
        return {}

    @abstractmethod
    def measure(self, context: Any) -> M:
        """Measure a shard (`ShardContext`) or a model (`ModelContext`), or raise `AneError`."""

    @abstractmethod
    def judge(self, measurement: M, policy: Any, subject: Any) -> Verdict:
        """Apply a policy, which is what `policy` gave, to a measurement. Pure, and quick."""

    def limits(self, policy: Any, subject: Any) -> Limits:
        """What a policy asks of figures of its verdicts, whatever was measured.

        Judges take the same limits, so that old figures are judged as new ones are. Limits that
        depend on the measurement, and findings without a figure, are not among them.
        """
        return {}

    @abstractmethod
    def figures(self, measurement: M) -> tuple[Figure, ...]:
        """What a measurement comes to before any policy."""

    def beside(self, recorded: M, context: Any) -> M:
        """Verified evidence with what this machine can tell besides; no verdict rests on it."""
        return recorded

    def lacks(
        self, measurement: M, subject: Any, place: Environment, artifact: Artifact | None
    ) -> Iterator[str]:
        """What recorded evidence leaves out of what was asked, such as `leaves out p`.

        Judges see only what is in a measurement, so this is asked before. `place` is the recording
        machine: backend, chip, compute units.
        """
        return iter(())

    def proves(self, verdict: Verdict) -> str:
        """Why a verdict that was measured on a device is no proof of one; empty where it is."""
        return ""

    def changes(self, old: M, new: M) -> Iterator[str]:
        """One line for each figure that differs, such as `cosine.min 0.981204 -> 0.980917`."""
        before, after = (
            {f.name: f"{f.value:.6g}" if isinstance(f.value, float) else str(f.value) for f in made}
            for made in (self.figures(old), self.figures(new))
        )
        for name in dict.fromkeys((*before, *after)):
            then, now = before.get(name, "none"), after.get(name, "none")
            if then != now:
                yield f"{name} {then} -> {now}"

    def moves(self, old: M, new: M) -> Iterator[Move]:
        """Operations that run elsewhere by another measurement of the same bytes."""
        return iter(())
