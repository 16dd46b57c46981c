"""Activations by table, and what is composed of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor.ane import _activations as ane
from pytest_ane.mlprogram.executor.ane._activations import logsumexp, softplus
from tests.mlprogram.executor.ane.curves import fingerprint

FOLDER = Path(__file__).parent
RECORDED: dict[str, Any] = json.loads((FOLDER / "fingerprints.json").read_text())["curves"]


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "log", "exp", "inverse"])
def test_whole_fingerprint(name: str) -> None:
    """Points, largest errors, their place, number and places of minima: all as recorded."""
    assert fingerprint(name)._asdict() == RECORDED[name]


@pytest.mark.parametrize(
    ("name", "minima", "places"),
    [("tanh", 206, 19), ("sigmoid", 379, 20), ("erf", 512, 17), ("gelu_tanh", 554, 20)],
)
def test_all_but_the_tails(name: str, minima: int, places: int) -> None:
    """The largest errors as recorded, and nearly all minima; the tails are not known exactly."""
    computed, recorded = fingerprint(name), RECORDED[name]
    assert (computed.points, computed.ulp, computed.place) == (
        recorded["points"], recorded["ulp"], recorded["place"],
    )  # fmt: skip
    if name != "gelu_tanh":
        assert computed.largest == recorded["largest"]
    assert computed.minima == minima
    assert abs(minima - recorded["minima"]) <= 1
    equal = [a == b for a, b in zip(computed.places, recorded["places"], strict=True)]
    assert sum(equal) == places


def test_knots_that_are_fitted() -> None:
    """SiLU and GELU: errors as recorded at the worst place; inside, only about 1e-4 is known."""
    silu, gelu = fingerprint("silu"), fingerprint("gelu")
    for name, computed in (("silu", silu), ("gelu", gelu)):
        assert (computed.ulp, computed.place) == (RECORDED[name]["ulp"], RECORDED[name]["place"])
    assert silu.largest == RECORDED["silu"]["largest"]
    assert float(gelu.largest) == pytest.approx(float(RECORDED["gelu"]["largest"]), rel=0.01)
    assert abs(silu.minima - RECORDED["silu"]["minima"]) <= 2
    assert abs(gelu.minima - RECORDED["gelu"]["minima"]) <= 4


@pytest.mark.parametrize(
    ("compute", "x", "expected"),
    [
        (ane.sqrt, -1.0, 0), (ane.rsqrt, -1.0, 0), (ane.log, -1.0, 0), (ane.log, 0.0, -45440),
        (ane.log, np.inf, 0), (ane.exp, np.inf, np.inf), (ane.exp, -np.inf, 0), (ane.exp, 0, 1),
        (ane.inverse, 0.0, 9360), (ane.inverse, np.inf, 0), (ane.inverse, 32768.0, 0),
        (ane.tanh, -30.0, -1), (ane.tanh, np.inf, 1), (ane.sigmoid, -12.0, 0),
        (ane.sigmoid, 12.0, 1), (ane.silu, 100.0, 100), (ane.silu, -100.0, 0), (ane.gelu, 5.0, 5),
    ],
)  # fmt: skip
def test_ends(compute: Any, x: float, expected: float) -> None:
    assert compute(np.array([[x]], np.float32)).tolist() == [[expected]]


def test_a_composed_gelu_has_no_rule() -> None:
    assert ane.gelu(np.zeros(1), mode="SIGMOID_APPROXIMATION") is None


def test_recorded_cliffs() -> None:
    # Issue 2687 of coremltools: falls to 0 above about 10.4.
    x = np.arange(0x3C00, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    y = softplus(x)
    first = np.flatnonzero(y == 0)[0]
    assert x[first] == 10.3984375
    assert y[first - 1] > 10
    assert not y[first:].any()
    # Issue 2690 of coremltools: 32 equal channels fall from 11.1 to 0 at 7.6313 of a sweep.
    sweep = np.linspace(-15, 15, 2000)
    x = np.repeat(sweep.astype(np.float16).astype(np.float32)[None], 32, axis=0)
    y = logsumexp(x, axes=[0])
    first = np.flatnonzero((y == 0) & (sweep > 1))[0]
    assert round(float(sweep[first]), 4) == 7.6313
    assert abs(y[first - 1] - 11.1) < 0.02


def test_axes_and_kept_dimensions() -> None:
    x = np.zeros((2, 3, 4), np.float32)
    assert logsumexp(x).shape == ()
    assert logsumexp(x, axes=[-1, 0]).shape == (3,)
    assert logsumexp(x, axes=[1], keep_dims=True).shape == (2, 1, 4)
    np.testing.assert_allclose(logsumexp(x, axes=[1]), np.log(3), rtol=1e-2)
