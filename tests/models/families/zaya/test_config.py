"""Dimensions from a published configuration, and variants that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import Branch, Cut, Wire
from pytest_ane.models.families.decoder import Layer, Mixture
from pytest_ane.models.families.layout import Rotary
from pytest_ane.models.families.zaya import wiring
from pytest_ane.models.families.zaya.config import ZayaConfig
from pytest_ane.models.sources import SeededSource
from tests.models.families.zaya.tiny import tiny_source

CUT = Cut((), context=9)


def read(drop: tuple[str, ...] = (), **changes: Any) -> ZayaConfig:
    """The configuration of a tiny model with some of its keys dropped or changed."""
    source = tiny_source()
    source.values = {k: v for k, v in source.values.items() if k not in drop} | changes
    return ZayaConfig.read(source, 3, CUT)[0]


def test_a_synthetic_model_is_the_published_zaya1_8b() -> None:
    config, names = ZayaConfig.read(SeededSource(0, lambda name, shape: None), 3, Cut(()))
    assert config == ZayaConfig(
        family="zaya",
        width=2048,
        ffn=2048,
        heads=8,
        kv_heads=2,
        head=128,
        vocabulary=262_272,
        epsilon=1e-5,
        scale=128**-0.5,
        layers=(Layer(0), Layer(None, sparse=True)) * 40,
        rotaries=(Rotary.plain(64, 5e6),),
        mixture=Mixture(16, 1, 2048, normalized=False),
        slices=3,
        context=2048,
        variant="published",
        router=256,
    )
    assert not names.folded
    assert (config.q_channels, config.kv_channels, config.qk_channels) == (1024, 256, 1280)


def test_dimensions_are_read_from_the_configuration() -> None:
    config = read()
    assert (len(config.layers), config.width, config.heads, config.kv_heads) == (2, 12, 4, 2)
    assert (config.head, config.ffn, config.context) == (4, 8, 9)
    assert config.rotaries == (Rotary.plain(2, 100.0),)


@pytest.mark.parametrize(
    ("drop", "changes"),
    [
        (("head_dim",), {"kv_channels": 4}),
        (("num_query_groups",), {"num_key_value_heads": 2}),
        (("rope_theta",), {"rotary_base": 100.0}),
        # Where the model has more attention heads on paper than its shards have queries.
        ((), {"cca_num_q_heads": [4, 0], "num_attention_heads": 8}),
        (("ffn_hidden_size",), {"ffn_hidden_size_list": [0, 16]}),
        ((), {"zaya_mlp_expansion": [0, 6]}),
        ((), {"clamp_temp": False, "zaya_use_mod": True, "sliding_window": None}),
    ],
)
def test_other_releases_say_the_same(drop: tuple[str, ...], changes: dict[str, Any]) -> None:
    assert read(drop, **changes) == read()


@pytest.mark.parametrize(
    ("drop", "changes", "message"),
    [
        (("hidden_size",), {}, "tiny: config.json has none of hidden_size."),
        (("norm_epsilon",), {}, "tiny: config.json has none of norm_epsilon, rms_norm_eps."),
        (
            (),
            {"sliding_window": 4},
            "tiny: config.json has sliding_window 4, which family 'zaya' does not compute, so its "
            "reference would be another model.",
        ),
        ((), {"num_experts": 0}, "tiny: num_experts is 0, no positive number."),
        ((), {"num_experts": True}, "tiny: num_experts is True, no positive number."),
        ((), {"num_experts": []}, "tiny: num_experts is [], no positive number."),
        ((), {"num_experts": ["a", 2]}, "tiny: num_experts is ['a', 2], no positive number."),
        (
            (),
            {"num_query_groups": 0.5},
            "tiny: num_query_groups is 0.5, no whole number up to 16,777,216.",
        ),
        (
            (),
            {"num_hidden_layers": 10**10},
            "tiny: num_hidden_layers is 10000000000, no whole number up to 10,000.",
        ),
        (
            (),
            {"partial_rotary_factor": 2},
            "tiny: config.json has rope_parameters.partial_rotary_factor 2; of a head's 4 channels "
            "an even number of at least 2 can turn.",
        ),
        ((), {"hidden_size": "2048"}, "tiny: hidden_size is '2048', no positive number."),
        (
            (),
            {"clamp_temp": True},
            "tiny: clamp_temp is True, and family 'zaya' computes False only.",
        ),
        ((), {"cca_time0": 3}, "tiny: cca_time0 is 3, and family 'zaya' computes 2 only."),
        (
            (),
            {"num_query_groups": 3},
            "tiny: 4 query heads, 3 key heads of 4 channels, and 16 channels of an expert's two "
            "halves do not divide evenly.",
        ),
    ],
)
def test_what_is_missing_absurd_or_another_variant(
    drop: tuple[str, ...], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError) as error:
        read(drop, **changes)
    assert str(error.value) == message


def test_wiring_names_the_family() -> None:
    state = (Branch("router", "set", -1),)
    assert wiring(["head.0", "L03", "L01", "L00"]) == (
        Wire("L00", kind="attention"),
        Wire("L01", kind="mixture", more=state),
        Wire("L03", takes=("x", "router"), kind="mixture", more=state),
        Wire("head.0", gives="logits", mode="append", kind="head"),
    )
    with pytest.raises(ManifestError, match=r"Family 'zaya' has no shard 'L00\.p0'"):
        wiring(["L00.p0"])
