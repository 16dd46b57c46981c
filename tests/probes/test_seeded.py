"""Probes: the same in every run and on every machine, of the size they are named for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.probes.seeded import (
    FP16_EDGE,
    Captured,
    extreme,
    gaussian,
    generator,
    lengths,
    massive,
    outlier,
    pick,
    quantile,
    seeded,
    unit_norm,
)

LITERAL = {
    "gaussian": "9414ec01a56911cf",
    "unit-norm": "d5b6b0a81ce3f780",
    "outlier": "b5c982d6e417234b",
    "extreme": "ce807261ba5ddbcf",
}


def captured() -> Captured:
    """Three ordinary channels, and one that is massive at the first position."""
    rng = np.random.Generator(np.random.PCG64(1))
    state = (rng.integers(-40, 40, (9, 4)) / 16).astype(np.float32)
    state[0, 2] = -960.0
    return Captured.from_states([state, state[:5] + 0.25])


def drawn(*kinds: str, count: int = 1, seed: int = 1, length: int = 3) -> Iterator[tuple]:
    return seeded(kinds, count=count, seed=seed, length=length, width=4, captured=captured)


def digests() -> dict[str, str]:
    """Of the bytes of every kind's probes."""
    found = {}
    for kind in LITERAL:
        together = b"".join(x.tobytes() for _, _, x in drawn(kind, count=2, length=40))
        found[kind] = hashlib.sha256(together).hexdigest()[:16]
    return found


def test_probes_are_known_to_the_last_bit() -> None:
    assert digests() == LITERAL


@given(st.integers(1, 20), st.integers(2, 40), st.integers(0, 9))
def test_gaussian_probes_have_rms_1_and_unit_norm_ones_rows_of_norm_1(
    length: int, width: int, seed: int
) -> None:
    x, rows = (draw(generator(seed), (length, width)) for draw in (gaussian, unit_norm))
    assert x.shape == rows.shape == (length, width)
    assert x.dtype == rows.dtype == np.float32
    assert np.sqrt(np.mean(x.astype(np.float64) ** 2)) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(np.linalg.norm(rows.astype(np.float64), axis=1), 1, atol=1e-6)


def test_captured_statistics_leave_the_first_position_out_of_all_but_the_peak() -> None:
    states = [np.array([[900.0, 1], [2, 1], [4, 1]], np.float32), np.array([[-8.0, 1]], np.float32)]
    found = Captured.from_states(states)
    assert found.mean.tolist() == [3, 1]
    assert found.std.tolist() == [1, 0]
    assert found.peak.tolist() == [900, 1]


def test_statistics_of_another_machine_s_last_bits_are_the_same() -> None:
    state = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    one, other = (Captured.from_states([x]) for x in (state, np.nextafter(state, np.float32(9))))
    for field in ("mean", "std", "peak"):
        assert getattr(one, field).tolist() == getattr(other, field).tolist()


def test_outlier_probes_have_each_channel_s_own_size_and_the_massive_ones_first() -> None:
    statistics = captured()
    x = outlier(generator(3), (4000, 4), statistics)
    assert x[0, 2] == -960
    np.testing.assert_allclose(x[1:].std(axis=0), statistics.std, rtol=0.05)
    np.testing.assert_allclose(x[1:].mean(axis=0), statistics.mean, atol=0.1)
    assert np.abs(x[1:]).max() < 20


@given(st.integers(1, 9), st.integers(1, 30), st.floats(1e-3, FP16_EDGE), st.integers(0, 9))
def test_extreme_probes_are_as_large_as_asked(
    length: int, width: int, largest: float, seed: int
) -> None:
    x = extreme(generator(seed), (length, width), largest)
    assert np.abs(x).max() == pytest.approx(largest, rel=1e-6)
    assert np.isfinite(x.astype(np.float16)).all()


def test_there_are_two_extreme_probes_whatever_the_count() -> None:
    found = list(drawn("extreme", count=5))
    assert [(name, float(np.abs(x).max())) for _, name, x in found] == [
        ("extreme T=3 captured maximum", 960.0),
        ("extreme T=3 fp16 edge", 32752.0),
    ]


def test_probes_by_kind_and_number() -> None:
    found = list(drawn("gaussian", "unit-norm", "outlier", count=2))
    assert [(kind, name, x.shape) for kind, name, x in found] == [
        (kind, f"{kind} T=3 #{number}", (3, 4))
        for kind in ("gaussian", "unit-norm", "outlier")
        for number in (0, 1)
    ]
    assert len({x.tobytes() for _, _, x in found}) == 6


def test_a_probe_does_not_depend_on_which_others_are_drawn() -> None:
    ((_, name, alone),) = drawn("unit-norm")
    by_name = {name: x for _, name, x in drawn("gaussian", "unit-norm", "extreme", count=2)}
    np.testing.assert_array_equal(alone, by_name[name])


@pytest.mark.parametrize("width", [1, 2, 7])
def test_each_position_of_a_massive_probe_has_one_channel_that_sticks_out(width: int) -> None:
    x, channels = massive(generator(1, width), (3, width), 400)
    assert ((x == 400).sum(axis=1) == 1).all()
    assert np.abs(x[x != 400]).max(initial=0) < 10
    assert channels == tuple(np.flatnonzero((x == 400).any(axis=0)))
    assert max(channels) <= width // 2


def test_lengths() -> None:
    assert [lengths(largest, 0) for largest in (1, 2, 4)] == [(1,), (1, 2), (1, 2, 3, 4)]
    fixed, found = {1, 2, 4, 5, 9, 64}, {*lengths(64, 0)}
    assert fixed < found
    assert len(found - fixed) == 2


@pytest.mark.parametrize("largest", [9, 16, 33, 64])
def test_over_seeds_every_length_is_drawn(largest: int) -> None:
    assert {n for seed in range(1, 41) for n in lengths(largest, seed)} == {*range(1, largest + 1)}


def test_what_is_drawn_goes_round() -> None:
    found = [pick(seed, "x", range(5)) for seed in range(5)]
    assert sorted(n for each in found for n in each) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert pick(0, "x", ()) == ()
    assert pick(3, "x", (7,)) == (7,)


@given(st.floats(2.0**-53, 1 - 2.0**-53))
def test_quantiles_agree_with_python_s(p: float) -> None:
    (found,) = quantile(np.array([p])).tolist()
    assert abs(found - (expected := NormalDist().inv_cdf(p))) <= 4e-15 * max(1, abs(expected))


def test_all_three_ranges_of_the_approximation() -> None:
    """The far one begins where -log(p) is 25."""
    p = np.array([2.0**-53, 1e-12, 1e-3, 0.2, 0.5, 0.8, 1 - 1e-3, 1 - 1e-12, 1 - 2.0**-53])
    expected = [NormalDist().inv_cdf(x) for x in p.tolist()]
    np.testing.assert_allclose(quantile(p), expected, rtol=4e-15, atol=1e-18)
