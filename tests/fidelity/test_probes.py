"""Seeded probes: the same in every run, of the size they are named for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.fidelity.probes import gaussian, generator, seeded, unit_norm

FIRST = [2555744597686074051, 12543213550936349887]


def test_a_generator_s_stream_is_known() -> None:
    """Raw PCG64 output, which numpy guarantees to keep; seeded by SHA-256 of `7/gaussian/64`."""
    assert generator(7, "gaussian", 64).bit_generator.random_raw(2).tolist() == FIRST


def test_streams_of_different_parts_differ() -> None:
    parts = [(7, "a"), (8, "a"), (7, "b"), (7, "a", 0), ("7a",)]
    firsts = {int(generator(*p).bit_generator.random_raw()) for p in parts}
    assert len(firsts) == len(parts)


@given(st.integers(1, 20), st.integers(2, 40), st.integers(0, 9))
def test_gaussian_probes_have_rms_1(length: int, width: int, seed: int) -> None:
    x = gaussian(generator(seed), (length, width))
    assert x.shape == (length, width)
    assert x.dtype == np.float32
    assert np.sqrt(np.mean(x.astype(np.float64) ** 2)) == pytest.approx(1, abs=1e-6)


@given(st.integers(1, 20), st.integers(2, 40), st.integers(0, 9))
def test_unit_norm_probes_have_rows_of_norm_1(length: int, width: int, seed: int) -> None:
    x = unit_norm(generator(seed), (length, width))
    assert x.shape == (length, width)
    assert x.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(x.astype(np.float64), axis=1), 1, atol=1e-6)


def test_a_gaussian_probe_is_normal() -> None:
    x = gaussian(generator(0), (64, 576))
    assert abs(x.mean()) < 0.02
    assert np.mean(np.abs(x) < 1) == pytest.approx(0.6827, abs=0.01)


def test_probes_by_kind_length_and_number() -> None:
    found = list(seeded(("gaussian", "unit-norm"), count=2, seed=5, lengths=(1, 3), width=4))
    assert [(kind, name, x.shape) for kind, name, x in found] == [
        ("gaussian", "gaussian T=1 #0", (1, 4)),
        ("gaussian", "gaussian T=1 #1", (1, 4)),
        ("gaussian", "gaussian T=3 #0", (3, 4)),
        ("gaussian", "gaussian T=3 #1", (3, 4)),
        ("unit-norm", "unit-norm T=1 #0", (1, 4)),
        ("unit-norm", "unit-norm T=1 #1", (1, 4)),
        ("unit-norm", "unit-norm T=3 #0", (3, 4)),
        ("unit-norm", "unit-norm T=3 #1", (3, 4)),
    ]
    assert len({x.tobytes() for _, _, x in found}) == 8


def test_the_same_seed_gives_the_same_probes_and_another_one_others() -> None:
    def probes(seed: int) -> list[bytes]:
        drawn = seeded(("gaussian",), count=3, seed=seed, lengths=(2,), width=8)
        return [x.tobytes() for _, _, x in drawn]

    assert probes(1) == probes(1)
    assert not set(probes(1)) & set(probes(2))


def test_a_probe_does_not_depend_on_which_others_are_drawn() -> None:
    few = list(seeded(("unit-norm",), count=1, seed=1, lengths=(3,), width=4))
    many = list(seeded(("gaussian", "unit-norm"), count=2, seed=1, lengths=(1, 3), width=4))
    by_name = {name: x for _, name, x in many}
    np.testing.assert_array_equal(few[0][2], by_name["unit-norm T=3 #0"])


def test_captured_probes_are_not_drawn() -> None:
    assert list(seeded(("captured",), count=2, seed=1, lengths=(1,), width=4)) == []
