"""analytics.mil, as far as it is known."""

from __future__ import annotations

import pytest

from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans import explain
from pytest_ane.gates.placement.plans.analytics import read
from tests.gates.placement.plans.samples import ANALYTICS


def test_backends_estimates_and_messages() -> None:
    plan = read(ANALYTICS)
    const, conv, write = plan.functions[0].operations
    assert (const.name, const.op, const.preferred) == ("y_pad", "const", None)
    assert (conv.name, conv.op, conv.preferred) == ("y", "conv", "ANE")
    assert (conv.supported, conv.cost) == (("ANE", "CPU"), 7.23e-06)
    assert conv.extra["EstimatedRuntime"] == {"ane": 7.23e-06, "bnns": 12.0}
    assert (write.name, write.op, write.preferred) == ("w", "write_state", "CPU")
    assert write.extra["ValidationMessage"] == {"ane": "no (states)"}


def test_it_is_called_experimental() -> None:
    assert list(explain(read(ANALYTICS)))[-1].startswith("The format analytics.mil is experimental")


def test_a_fragment_is_read() -> None:
    plan = read('tensor<fp16, [1]> a, tensor<fp16, [1]> b = split(x = x)[SelectedBackend = '
                'string("mps_graph")];')  # fmt: skip
    (operation,) = plan.functions[0].operations
    assert (operation.name, operation.op, operation.preferred) == ("a", "split", "GPU")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ANALYTICS[: ANALYTICS.index("-> (y)")].rstrip("} \n"), "ends inside a function"),
        (ANALYTICS[: ANALYTICS.index('"ane", 7')] + '"', "string does not end"),
        (ANALYTICS.replace("classic_cpu", "npu"), "'npu' is no backend"),
        (ANALYTICS.replace("7.23e-06", "7.23e"), "'7.23e' is no number"),
        (ANALYTICS[:-40], "ends inside a statement"),
    ],
)
def test_bad_texts_are_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        read(text)
