"""Numbers with units and limits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_ane.gates.verdict import RATIO, Figure
from pytest_ane.report.table import amount, figure_text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.99499, "", "0.9950"),
        (38.94, "", "38.9"),
        (21953.4, "", "21,953.4"),
        (1.25e-5, "", "1.25e-05"),
        (0.0, "", "0.0000"),
        (6.5e241, "%", "6.5e+243%"),
        (math.nan, "", "NaN"),
        (-math.inf, "dB", "-inf"),
        (1058, "", "1,058"),
        (1, "probes", "1 probe"),
        (16, "probes", "16 probes"),
        (10, "ops likely on the CPU", "10 ops likely on the CPU"),
        (1, "ops likely on the CPU", "1 op likely on the CPU"),
        (0.951, "%", "95.1%"),
        (31.636, "dB", "31.6 dB"),
        (0.0259, "nats", "0.0259 nats"),
        (2.3065, "x smaller than fp16", "2.31x smaller than fp16"),
        (0.76, "x smaller than fp16", "1.32x larger than fp16"),
        (3_069_701, "bytes", "3.07 MB"),
        (512, "bytes", "512 bytes"),
        (0.0587, "s", "58.7 ms"),
        (1.25, "s", "1.25 s"),
        (3151.1, "tok/s", "3,151 tok/s"),
        (9.25, "tok/s", "9.25 tok/s"),
        ("plan", "", "plan"),
        (None, "dB", "-"),
    ],
)
def test_amounts(value: Any, unit: str, text: str) -> None:
    assert amount(value, unit) == text


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (
            Figure("c", 0.995, label="cosine", limit=0.97, good="above", note="worst of 2"),
            "cosine 0.9950 (needs 0.97)",
        ),
        (
            Figure("cosine.min", 0.95, label="cosine", limit=0.97, good="above", note="worst of 2"),
            "cosine 0.9500 < 0.97 (worst of 2)",
        ),
        (
            Figure("cosine.min", 0.96999, label="cosine", limit=0.97, good="above"),
            "cosine 0.96999 < 0.97",
        ),
        (
            Figure("cosine.min", math.nan, label="cosine", limit=0.97, good="above"),
            "cosine NaN (needs 0.97)",
        ),
        (Figure("size_bytes", 591_654, "bytes", limit=500_000, good="below"), "591.65 kB > 500 kB"),
        (Figure("kl", 0.2, "nats", "KL", limit=0.5, good="below"), "KL 0.2000 nats (at most 0.5)"),
        (Figure("top1", 0.9, "%", "top-1", limit=0.999, good="above"), "top-1 90.0% < 99.9%"),
        (Figure("ratio", 0.76, RATIO, limit=2.2, good="above"),
         "1.32x larger than fp16 (needs a ratio of 2.2)"),
        (Figure("ops", 74, "ops for the ANE", of=84), "74 of 84 ops for the ANE"),
        (Figure("x", 300.0, label="max |x|", note="overflows"), "max |x| 300.0 (overflows)"),
    ],
)  # fmt: skip
def test_figures_beside_their_limits(figure: Figure, text: str) -> None:
    assert figure_text(figure) == text
