"""CoreMLInspect's text."""

from __future__ import annotations

import pytest

from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans import summarise
from pytest_ane.gates.placement.plans.coremlinspect import read
from tests.gates.placement.plans.samples import INSPECT


def test_columns_and_boundary_casts() -> None:
    plan = read(INSPECT)
    const, cast, gather, split = plan.functions[0].operations
    assert (const.name, const.op, const.preferred) == ("x_1_axis_0", "const", None)
    assert (cast.preferred, cast.supported, cast.boundary) == ("CPU", ("CPU", "GPU", "ANE"), True)
    assert (gather.name, gather.op, gather.preferred) == ("x_1_cast_fp16", "gather", "GPU")
    assert gather.supported == ("GPU", "CPU")
    assert gather.cost == pytest.approx(0.0068)
    # Five characters are printed: `99.22%` has lost its sign.
    assert (split.name, split.preferred, split.cost) == ("a", "ANE", pytest.approx(0.9922))
    assert plan.compute_units == "cpuAndNeuralEngine"
    summary = summarise(plan)
    assert (summary.conv_total, dict(summary.devices)) == (0, {"ANE": 1, "GPU": 1})
    assert (dict(summary.compile_time), summary.boundary_casts) == ({"const": 1}, 1)


def test_a_cast_of_an_output_is_at_the_boundary() -> None:
    text = 'func main(x) {\n0.1% N|C  y = ios16.cast(x: ["h"])\n  -> (y)\n}\n'
    assert read(text).functions[0].operations[0].boundary


def test_several_functions() -> None:
    plan = read(INSPECT + INSPECT.replace("func main", "func prefill"))
    assert [function.name for function in plan.functions] == ["main", "prefill"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (INSPECT.rstrip("}\n"), "ends inside function 'main'"),
        (INSPECT.replace(" = ios16.gather", " ios16.gather"), "line 8 is no operation"),
        (INSPECT.replace("G|C ", "Q|C "), "line 8: the devices"),
        ("Key: C=CPU, G=GPU, N=NeuralEngine\n", "no function"),
    ],
)
def test_bad_texts_are_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        read(text)
