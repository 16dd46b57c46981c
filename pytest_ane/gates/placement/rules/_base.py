"""What a placement rule is: data for people, and a small predicate for the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pytest_ane.gates.placement._graph import Site
from pytest_ane.mlprogram.records import MLModel

DISPATCH = (
    "751K/Apple-Neural-Engine-Microarchitecture-Study-M6, notes/coreml_dispatch.md (M4: plan and "
    "direct compile)"
)
"""Single operations on an M4 with macOS 27: Core ML's plan, and the ANE's own compiler."""
AUTHORING = (
    "apple/coreai-models@86b363d, model-authoring/references/neural_engine_rules.md (Apple's rules)"
)
GUIDE = "sbryngelson/ane-guide@9eb1afe, appendix A and chapter 17 (arXiv 2606.22283)"

Outcome = Literal["ineligible", "warned"]
Grade = Literal["A", "B", "C"]


def kinds(text: str) -> frozenset[str]:
    """Op types, written with spaces between them."""
    return frozenset(text.split())


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A documented limit of the Neural Engine.

    Attributes:
        id: stable name, such as `R064`. Two rules may share an id where a part only warns.
        title: the rule in one sentence.
        matches: what it matches, in MIL terms; the op types alone where that is all.
        consequence: what was observed where it applies, for most that it runs on the CPU.
        scope: the chips and systems it was observed on.
        outcome: `ineligible` fails the placement gate, `warned` is only told.
        grade: A for at least two independent measurements or the vendor's word, then B, C.
        source: where it is documented.
        fix: what people do about it.
        whole: whether it costs more than the operation: the load fails, or all leaves the ANE.
    """

    id: str
    title: str
    source: str
    fix: str
    consequence: str = "runs on the CPU"
    scope: str = "all"
    matches: str = ""
    outcome: Outcome = "ineligible"
    grade: Grade = "A"
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class OpRule(Rule):
    """A rule that speaks of one operation.

    Attributes:
        ops: the op types it looks at; empty for all of them.
        why: the sentence for an operation it applies to, `None` for any other; without it the
            rule applies to every op of `ops`, for the reason its title gives.
    """

    ops: frozenset[str] = frozenset()
    why: Callable[[Site], str | None] | None = None

    def apply(self, site: Site) -> str | None:
        """Why the rule applies to this operation; `None` where it does not."""
        if self.ops and site.op not in self.ops:
            return None
        return self.why(site) if self.why else self.title


@dataclass(frozen=True, kw_only=True)
class Warned(OpRule):
    """A rule of one operation that is only told."""

    outcome: Outcome = "warned"


class Subject(NamedTuple):
    """Something of a whole program that a rule applies to: its name, its kind, and why."""

    name: str
    kind: str
    why: str


@dataclass(frozen=True, kw_only=True)
class ProgramRule(Rule):
    """A rule that keeps a whole program off the ANE: the inputs, states or functions it is of."""

    why: Callable[[MLModel], Iterator[Subject]]
