"""RoPE's frequencies: literal examples, transformers' own functions, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families._layout import Rotary
from pytest_ane.models.families.decoder._rope import Parameters, rotary

HEAD, THETA, TRAINED = 8, 10_000.0, 64


def read(positions: int = TRAINED, **table: Any) -> Rotary:
    return rotary(Parameters("m: config.json", table, HEAD, THETA, positions, TRAINED))


def test_plain_angles() -> None:
    assert read() == Rotary((1.0, 0.1, 0.01, 0.001))


def test_linear_scaling_divides() -> None:
    assert read(rope_type="linear", factor=4.0) == Rotary((0.25, 0.025, 0.0025, 0.00025))


def test_half_of_a_head() -> None:
    assert read(partial_rotary_factor=0.5).frequencies == (1.0, 0.01)


def test_llama3_leaves_fast_pairs_and_slows_slow_ones() -> None:
    """Over 64 positions the pairs turn 10.2, 1.02, 0.1 and 0.01 times; above 4 nothing changes."""
    scaled = read(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    share = (64 * 0.1 / (2 * math.pi) - 1) / 3
    medium = ((1 - share) / 8 + share) * 0.1
    assert scaled.frequencies == pytest.approx((1.0, medium, 0.01 / 8, 0.001 / 8))


def test_yarn_multiplies_cosines_and_sines() -> None:
    scaled = read(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
    assert scaled.factor == pytest.approx(0.1 * math.log(4) + 1)
    cos, _ = scaled.tables(1)
    assert cos[0, 0] == pytest.approx(scaled.factor)


def test_how_a_model_came_to_be_changes_nothing() -> None:
    table = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    assert read(**table, finetuned=True) == read(**table)


def test_longrope_divides_each_pair() -> None:
    short = [1.0, 2.0, 4.0, 8.0]
    scaled = read(positions=16, rope_type="su", short_factor=short, long_factor=[9.0] * 4,
                  original_max_position_embeddings=16)  # fmt: skip
    assert scaled.frequencies == pytest.approx((1.0, 0.05, 0.0025, 0.000125))
    assert scaled.factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"rope_type": "axial"}, 'has rope_parameters.rope_type "axial"; computed are default, '),
        ({"rope_type": 3}, "has rope_parameters.rope_type 3; computed are"),
        ({"rope_type": ["linear"]}, r"rope_type \['linear'\]; computed are"),
        ({"rope_type": "linear"}, "has no rope_parameters.factor, which its rope_parameters.rope_"),
        ({"rope_type": "linear", "factor": 0}, "rope_parameters.factor is 0, no positive number"),
        ({"rope_type": "linear", "factor": 2, "odd": 1}, "rope_parameters.odd 1; that is not comp"),
        ({"partial_rotary_factor": 0.4}, "an even number of at least 2 can turn"),
        ({"partial_rotary_factor": 2}, "an even number of at least 2 can turn"),
        (
            {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4},
            "low_freq_factor 4; it must be below the high one, 4",
        ),
        ({"rope_type": "longrope", "short_factor": [1.0]}, r"\[1.0\]; expected a list of 4 positi"),
        ({"rope_type": "longrope", "short_factor": "x"}, "expected a list of 4 positive numbers"),
        (
            {"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 8},
            "original_max_position_embeddings 8; max_position_embeddings is 64; leave one",
        ),
    ],
)
def test_what_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        read(**table)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_angles_that_change_with_the_length(kind: str) -> None:
    table = {"rope_type": kind, "factor": 2.0} | (
        {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4} if kind == "longrope" else {}
    )
    assert len(read(**table).frequencies) == HEAD // 2
    with pytest.raises(SourceError) as error:
        read(positions=65, **table)
    assert f'rope_type "{kind}"; its angles change with the length beyond 64' in str(error.value)


def of_transformers(table: dict[str, Any], head: int, trained: int) -> tuple[np.ndarray, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=head, num_attention_heads=1, max_position_embeddings=trained,
        rope_parameters=table,
    )  # fmt: skip
    frequencies, factor = ROPE_INIT_FUNCTIONS[table["rope_type"]](config)
    return frequencies.numpy(), float(factor)


numbers = st.floats(1.5, 40)
tables = st.one_of(
    st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": numbers}),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("llama3"), "factor": numbers,
            "low_freq_factor": st.floats(0.5, 2), "high_freq_factor": st.floats(2.5, 8),
            "original_max_position_embeddings": st.integers(16, 4096),
        }
    ),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("yarn"), "factor": numbers,
            "original_max_position_embeddings": st.integers(16, 4096),
        },
        optional={
            "beta_fast": st.floats(8, 64), "beta_slow": st.floats(0.5, 4),
            "truncate": st.booleans(), "attention_factor": st.floats(0.5, 2),
            "mscale": st.floats(0.5, 2), "mscale_all_dim": st.floats(0.5, 2),
        },
    ),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(tables, st.integers(2, 40), st.floats(50, 1e6), st.integers(16, 8192))
def test_any_parameters_give_what_transformers_gives(
    table: dict[str, Any], pairs: int, theta: float, trained: int
) -> None:
    table["rope_theta"] = theta
    expected, factor = of_transformers(dict(table), 2 * pairs, trained)
    found = rotary(Parameters("m: config.json", table, 2 * pairs, THETA, 16, trained))
    np.testing.assert_allclose(found.frequencies, expected, rtol=2e-5, atol=1e-9)
    assert found.factor == pytest.approx(factor)
