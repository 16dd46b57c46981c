"""What probes exercise: a function that was not run, or a state never read, leaves it unproven."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.fidelity import Fidelity, judge
from pytest_ane.gates.fidelity._measure import coverage
from pytest_ane.gates.fidelity._records import Covered
from pytest_ane.manifest import Input
from pytest_ane.manifest.policy import FidelityPolicy
from pytest_ane.probes.inputs import Domain
from tests.gates.fidelity.verdicts import GOOD


def program(*states: str, functions: tuple[str, ...] = ("main",)) -> Any:
    made = {name: object() for name in functions}
    return SimpleNamespace(
        main=made[functions[0]],
        program=SimpleNamespace(functions=made),
        states=[SimpleNamespace(name=name) for name in states],
    )


def case(calls: int = 1, length: int = 4, **carried: bool) -> Any:
    return SimpleNamespace(
        calls=({},) * calls, length=length, carried=carried, domains={}, spans=(), slots={}
    )


def gaps(*covered: Covered) -> list[str]:
    return [each.what for each in covered if not each.exercised]


def test_functions_and_lengths() -> None:
    decode, verify, lengths = coverage(
        program(functions=("decode", "verify4")), [case(), case(length=1)]
    )
    assert (decode.what, decode.how, decode.exercised) == ("function decode", "run", True)
    assert (verify.what, verify.how, verify.exercised) == ("function verify4", "not run", False)
    assert (lengths.what, lengths.how) == ("lengths", "1, 4 compared")


@pytest.mark.parametrize(
    ("sizes", "says"),
    [((4, 9, 16), "4, 9, 16 compared"), ((4, 4), "1 compared"), ((), "nothing compared")],
)
def test_lengths_are_those_of_inputs_where_an_output_is_one_row(
    sizes: tuple[int, ...], says: str
) -> None:
    """As of a mean over positions."""
    cases = [case(length=1) for _ in sizes]
    for each, size in zip(cases, sizes, strict=True):
        each.calls = ({"x": np.zeros((1, 8, size)), "scale": np.zeros(8)},)
    *_, lengths = coverage(program(), cases)
    assert lengths.how == says


@pytest.mark.parametrize(
    ("cases", "unread"),
    [
        ([case()], ["state k", "state v"]),
        ([case(3)], []),
        ([case(3, k=True, v=True)], []),
        ([case(3, k=True, v=False)], ["state v"]),
        ([case(3, k=True, v=False), case(3, k=False, v=True)], []),
    ],
)
def test_states(cases: list[Any], unread: list[str]) -> None:
    assert gaps(*coverage(program("k", "v"), cases)) == unread


def reached(*spans: tuple[int, int], slots: int, filled: bool = False) -> Covered:
    """What is told of the state `k` of calls at these positions."""
    made = case(len(spans))
    made.spans, made.slots, made.states = spans, {"k": slots}, {"k": 0} if filled else {}
    return coverage(program("k"), [made])[1]


@pytest.mark.parametrize(
    ("covered", "how"),
    [
        (reached((0, 4), (4, 4), slots=8), "2 calls, positions 0 to 7 of 8"),
        (reached((0, 6), (6, 5), slots=8), "2 calls, positions 0 to 10 round 8 slots"),
        (
            reached((4, 2), (997, 3), slots=1000, filled=True),
            "2 calls, positions 4 to 999 of 1,000, 5 of them in calls",
        ),
    ],
)
def test_slots_that_calls_reach(covered: Covered, how: str) -> None:
    assert (covered.how, covered.exercised) == (f"carried over up to {how}", True)


def test_slots_that_no_call_reaches_are_not_exercised() -> None:
    covered = reached((0, 1), (1, 1), slots=32)
    assert not covered.exercised
    assert covered.how.endswith("positions 0 to 1 of 32: nothing wrote or read 30 slots")
    assert covered.remedy == "give golden tensors of calls that reach its end"


def test_inputs() -> None:
    probe = SimpleNamespace(
        calls=({"t": np.array([0, 3])}, {"t": np.array([3, 7])}),
        length=2,
        carried={},
        domains={
            "t": Domain("derived", Input(kind="ids", count=8), "ids: 8 rows of the table `e`"),
            "x": Domain("default", None, "floats of the probe's kind"),
        },
    )
    _, tokens, floats, _ = coverage(program(), [probe])
    assert (tokens.what, tokens.how) == ("input t", "ids: 8 rows of the table `e`; 3 of 8 drawn")
    assert not tokens.exercised
    assert tokens.remedy.endswith(
        '[models.NAME.shard.ID.inputs.t] kind = "ids", count = 8, sample = true'
    )
    sample = Input(kind="ids", count=8, sample=True)
    probe.domains["t"] = Domain("manifest", sample, "ids: as the manifest says")
    _, tokens, floats, _ = coverage(program(), [probe])
    assert tokens.exercised
    assert (floats.what, floats.how) == ("input x", "floats of the probe's kind")


def test_what_is_not_exercised_is_unproven_and_the_rest_is_listed() -> None:
    carried = Covered("state k", "carried over up to 3 calls")
    never = Covered("state v", "every probe is one call", exercised=False, remedy="record more")
    for covered, status in (((carried,), "passed"), ((carried, never), "unproven")):
        verdict = judge(Fidelity((GOOD,), True, {}, coverage=covered), FidelityPolicy(), "m:L01")
        assert verdict.status == status
        assert verdict.table("coverage").rows[0] == ("state k", "carried over up to 3 calls")
    (finding,) = verdict.reasons
    assert finding.reason == "The state v is not exercised: every probe is one call"
    assert finding.remedy == "record more"
