"""Normal values with the same bits everywhere: against literals, and against Python's own."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.probes.normal import generator, normals, quantile

FIRST = [2555744597686074051, 12543213550936349887]


def test_a_generator_s_stream_is_known() -> None:
    """Raw PCG64 output, which numpy guarantees to keep; seeded by SHA-256 of `7/gaussian/64`."""
    assert generator(7, "gaussian", 64).random_raw(2).tolist() == FIRST


def test_streams_of_different_parts_differ() -> None:
    parts = [(7, "a"), (8, "a"), (7, "b"), (7, "a", 0), ("7a",)]
    assert len({int(generator(*p).random_raw()) for p in parts}) == len(parts)


def test_normal_values_are_known_to_the_last_bit() -> None:
    assert [x.hex() for x in normals(generator(7, "gaussian", 64), (4,)).tolist()] == [
        "-0x1.163d1843eb120p+0",
        "0x1.ded5afff0ef5ep-2",
        "-0x1.8d7c54acd9f6bp-1",
        "-0x1.491f949aa13a2p-3",
    ]


@given(st.floats(2.0**-53, 1 - 2.0**-53))
def test_quantiles_agree_with_python_s(p: float) -> None:
    (found,) = quantile(np.array([p])).tolist()
    assert abs(found - (expected := NormalDist().inv_cdf(p))) <= 4e-15 * max(1, abs(expected))


def test_all_three_ranges_of_the_approximation() -> None:
    """The far one begins where -log(p) is 25."""
    p = np.array([2.0**-53, 1e-12, 1e-3, 0.2, 0.5, 0.8, 1 - 1e-3, 1 - 1e-12, 1 - 2.0**-53])
    expected = [NormalDist().inv_cdf(x) for x in p.tolist()]
    np.testing.assert_allclose(quantile(p), expected, rtol=4e-15, atol=1e-18)


def test_the_distribution_is_normal() -> None:
    x = normals(generator(0), (64, 576))
    assert abs(x.mean()) < 0.02
    for sigmas, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert abs(np.mean(np.abs(x) < sigmas) - share) < 0.01
