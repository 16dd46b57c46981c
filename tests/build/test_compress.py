"""Which engine makes what, seen in the packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.build import compress as module
from pytest_ane.build.census import take_census
from pytest_ane.build.compress import compress
from pytest_ane.build.quiet import converter_notes, import_coremltools
from pytest_ane.core.errors import BuildError
from pytest_ane.manifest import Linear, Palettize, Uncompressed
from pytest_ane.mil import read_model
from pytest_ane.mil.records import MLModel


@pytest.fixture(scope="module")
def model() -> Any:
    """Two convolutions, `a` and `b`."""
    ct = import_coremltools()
    import torch

    torch.manual_seed(0)
    network = torch.nn.Sequential()
    network.add_module("a", torch.nn.Conv2d(16, 32, 1, bias=False))
    network.add_module("b", torch.nn.Conv2d(32, 64, 1, bias=False))
    with torch.no_grad(), converter_notes():
        traced = torch.jit.trace(network.eval(), torch.zeros(1, 16, 2, 1), check_trace=False)
        return ct.convert(
            traced,
            inputs=[ct.TensorType("x", (1, 16, 2, 1), np.float16)],
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        )


def stored(path: Path) -> dict[str, tuple[str, int]]:
    made = read_model(path)
    assert isinstance(made, MLModel)
    return {w.name.partition("_")[0]: (w.storage, w.nbits) for w in take_census(made).weights}


LUT, LINEAR = "constexpr_lut_to_dense", "constexpr_blockwise_shift_scale"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (Uncompressed(), {"a": ("const", 16), "b": ("const", 16)}),
        (Palettize(nbits=4, weight_threshold=0), {"a": (LUT, 4), "b": (LUT, 4)}),
        (Palettize(nbits=4, weight_threshold=512), {"a": ("const", 16), "b": (LUT, 4)}),
        (
            Palettize(nbits=2, keep=("b_*",), weight_threshold=0),
            {"a": (LUT, 2), "b": ("const", 16)},
        ),
        (Linear(weight_threshold=512), {"a": ("const", 16), "b": (LINEAR, 8)}),
    ],
)
def test_what_is_stored(model: Any, asked: Any, found: Any, tmp_path: Path) -> None:
    assert compress(model, asked, tmp_path / "shard.mlpackage", "m:L00") == ()
    assert stored(tmp_path / "shard.mlpackage") == found
    assert [p.name for p in tmp_path.iterdir()] == ["shard.mlpackage"]


def test_two_engines_in_one_package(model: Any, tmp_path: Path) -> None:
    linear = {"weights": "a_*", "method": "linear", "weight_threshold": 0}
    asked = Palettize.model_validate(
        {"mode": "uniform", "weight_threshold": 0, "overrides": [linear]}
    )
    compress(model, asked, tmp_path / "shard.mlpackage", "m:L00")
    assert stored(tmp_path / "shard.mlpackage") == {"a": (LINEAR, 8), "b": (LUT, 4)}


@pytest.mark.parametrize(
    ("settings", "ours"),
    [
        ({}, True),
        ({"mode": "uniform"}, True),
        ({"mode": "unique"}, True),
        ({"engine": "coremltools"}, False),
        ({"mode": "uniform", "engine": "coremltools"}, False),
        ({"cluster_dim": 2}, False),
        ({"enable_per_channel_scale": True}, False),
    ],
)
def test_the_engine(
    settings: dict[str, Any],
    ours: bool,
    model: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    real = module._through_coremltools

    def spy(*arguments: Any) -> Any:
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(module, "_through_coremltools", spy)
    asked = Palettize.model_validate({"nbits": 4, "weight_threshold": 0, **settings})
    notes = compress(model, asked, tmp_path / "shard.mlpackage", "m:L00")
    assert bool(calls) is not ours
    if settings.get("mode") == "unique":
        assert all("more than 256 distinct values" in note for note in notes)
    else:
        assert {storage for storage, _ in stored(tmp_path / "shard.mlpackage").values()} <= {
            LUT,
            LINEAR,
        }


def test_a_declined_weight_is_noted(model: Any, tmp_path: Path) -> None:
    asked = Palettize(weight_threshold=0, group_size=64)
    [note] = compress(model, asked, tmp_path / "shard.mlpackage", "m:L00")
    assert note == "a_weight_to_fp16: 32 output channels are not divisible by group_size 64"


def test_nothing_is_left_of_a_build_that_fails(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, subject: str) -> None:
        raise BuildError("no")

    monkeypatch.setattr(module, "palettize", fail)
    with pytest.raises(BuildError):
        compress(model, Palettize(weight_threshold=0), tmp_path / "shard.mlpackage", "m:L00")
    assert list(tmp_path.iterdir()) == []
