"""The predicted map of `pytest-ane explain`, whole for small graphs and short for large ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_ane.gates.placement.segmenter import Op, Predicted, Tensor, predict
from pytest_ane.report.placement import headline, off_groups, prediction_lines

IMAGE = Tensor((1, 64, 32, 32))


def conv(name: str = "conv") -> Op:
    return Op(name, "conv", (IMAGE,), (IMAGE,), Tensor((64, 64, 3, 3), constant=True))


def op(kind: str, name: str = "") -> Op:
    return Op(name or kind, kind, (IMAGE,), (IMAGE,))


def lines(ops: Sequence[Op], chip: str = "M4") -> list[str]:
    prediction = predict(ops, chip=chip)
    predicted = Predicted("main", None, prediction, ops=tuple(ops))
    return [*prediction_lines([predicted])]


def test_a_graph_with_an_island_and_too_little_work() -> None:
    ops = [*map(conv, "abcde"), op("cumsum", "sum"), *map(conv, "fghij")]
    assert lines(ops) == [
        "predicted (M4, macOS 27, CPU_AND_NE): 10 of 11 compute ops on the ANE in 2 segments",
        "path 0.6761 ms (0.625 ms for launches and 2 switches); without the ANE 1.005 ms, margin "
        "0.3289 ms",
        "segments, in order:",
        "  1. ANE  0.02337 ms  5 ops: a ... e",
        "     5 conv",
        "  2. CPU  0.004308 ms  1 op: sum",
        "     1 cumsum",
        "  3. ANE  0.02337 ms  5 ops: f ... j",
        "     5 conv",
        "off the ANE:",
        "  - 1 op not supported: cumsum: the ANE does not have it:",
        "    1 cumsum: sum",
    ]
    text = lines([conv("a"), conv("b")])
    assert "  - 2 ops too little work, 0.05922 ms short of its launch and switches:" in text
    assert not any("\x1b" in line for line in lines([op("tan", "\x1b[31m"), conv("\x1b")]))


def test_neighbours_are_named_and_alike_ones_grouped() -> None:
    sums = [op("cumsum", f"s{i}") for i in range(9)]
    ops = [conv("a"), conv("b"), op("tan", "t0"), conv("c"), conv("d"), *sums]
    (pulled, *_) = [line for line in lines(ops) if "pulled" in line]
    assert pulled.startswith("  - 3 ops pulled along by tan `t0`, ")
    assert [len(group.operations) for group in off_groups(predict(ops))] == [3, 1, 1, 9]


@pytest.mark.drawn
@pytest.mark.slow
def test_a_large_program_stays_short() -> None:
    ops = [*map(conv, "abcde"), op("tan"), *[op("relu")] * 20, op("cumsum")] * 200
    text = lines(ops)
    assert len(text) < 50
    assert any("more segments; --json has all of them" in line for line in text)
    assert max(map(len, text)) < 200


def test_without_costs_support_is_told_and_without_estimates_why() -> None:
    text = lines([*[conv("a")] * 20, op("cumsum"), op("sigmoid")], "M1")
    assert text[0] == (
        "predicted (M1, CPU_AND_NE): no units, as costs are unknown; 21 of 22 compute ops "
        "supported, 20 in rows of large work"
    )
    assert "  - 20 ops in rows of large work" in text
    assert "  - 1 op in rows of small work" in text
    assert not any("short" in line or "path" in line for line in text)
    text = lines([conv(), op("non_zero")])
    assert text[0].endswith(": nothing; Core ML makes no estimates where values decide shapes")
    assert text[-2:][0] == "rests on:"


@pytest.mark.parametrize(("tokens", "shown"), [(None, ""), (8, ", T = 8")])
def test_the_head_names_function_and_t(tokens: int | None, shown: str) -> None:
    predicted = Predicted("verify", tokens, predict([conv()]))
    assert headline(predicted, several=True).startswith(
        f"predicted verify (M4, macOS 27, CPU_AND_NE{shown}): 0 of 1 compute ops"
    )
