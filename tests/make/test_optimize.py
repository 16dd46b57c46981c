"""Every method and granularity, asked in the manifest's words and done by coremltools.

The verdict on the package that comes out must be `passed`, and its structure the one named here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pytest_ane.gates.compression import judge
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.verdict import Verdict
from pytest_ane.make import Census, compare_weights, take_census
from pytest_ane.make.compress import compress, exact_percentiles, percentile
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.manifest import Compression
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.report.verdict import reasons

Asked = dict[str, Any]
Build = Callable[..., tuple[Verdict, Census, MLModel]]

LUT, SPARSE, SPARSE_LUT = (
    f"constexpr_{name}" for name in ("lut_to_dense", "sparse_to_dense", "lut_to_sparse")
)
SCALE, SPARSE_SCALE, AFFINE = (
    f"constexpr_{name}"
    for name in ("blockwise_shift_scale", "sparse_blockwise_shift_scale", "affine_dequantize")
)


def palettize(mode: str = "uniform", **options: Any) -> Asked:
    return {"method": "palettize", "mode": mode, "weight_threshold": 0, **options}


def linear(**options: Any) -> Asked:
    return {"method": "linear", "weight_threshold": 0, **options}


def prune(**options: Any) -> Asked:
    options = options or {"target_sparsity": 0.5}
    return {"method": "prune", "weight_threshold": 0, **options}


def then(first: Asked, *joint: Asked) -> Asked:
    return {**first, "joint": list(joint)}


TENSOR = {"granularity": "per_tensor"}
EIGHTS = {"group_size": 8}

ANYWHERE: dict[str, tuple[Asked, dict[str, list[str]]]] = {
    "uniform": (palettize(**TENSOR), {"": [LUT]}),
    "uniform of coremltools": (palettize(engine="coremltools", **TENSOR), {"": [LUT]}),
    "k-means of coremltools": (palettize("kmeans", engine="coremltools", **TENSOR), {"": [LUT]}),
    "k-means": (palettize("kmeans", nbits=2, **TENSOR), {"": [LUT]}),
    "1 bit": (palettize(nbits=1, **TENSOR), {"": [LUT]}),
    "int8": (linear(), {"iOS18": [SCALE], "": [AFFINE]}),
    "uint8 with offset": (linear(dtype="uint8", mode="linear"), {"iOS18": [SCALE], "": [AFFINE]}),
    "one scale": (linear(**TENSOR), {"iOS18": [SCALE], "": [AFFINE]}),
    "half": (prune(), {"": [SPARSE]}),
    "nine tenths": (prune(target_sparsity=0.9), {"": [SPARSE]}),
    "2 of 4": (prune(n_m_ratio=[2, 4]), {"": [SPARSE]}),
    "3 of 7": (prune(n_m_ratio=[3, 7]), {"": [SPARSE]}),
    "threshold": (prune(threshold=0.75), {"": [SPARSE]}),
}  # fmt: skip
SINCE_IOS18: dict[str, tuple[Asked, list[str]]] = {
    "groups": (palettize(**EIGHTS), [LUT]),
    "k-means in groups": (palettize("kmeans", **EIGHTS), [LUT]),
    "3 bits": (palettize(nbits=3, **TENSOR), [LUT]),
    "6 bits": (palettize(nbits=6, **EIGHTS), [LUT]),
    "8 bits": (palettize(nbits=8, **TENSOR), [LUT]),
    "pairs": (palettize("kmeans", nbits=2, cluster_dim=2, **EIGHTS), [LUT]),
    "scaled": (palettize(enable_per_channel_scale=True, **EIGHTS), [SCALE, LUT]),
    "scaled as a whole": (palettize(enable_per_channel_scale=True, **TENSOR), [SCALE, LUT]),
    "int4": (linear(dtype="int4"), [SCALE]),
    "uint4 by block": (linear(dtype="uint4", granularity="per_block", block_size=8), [SCALE]),
    "int8 by block": (linear(granularity="per_block", block_size=16), [SCALE]),
    "pruned, palettes": (then(prune(), palettize(**EIGHTS)), [SPARSE_LUT, SPARSE]),
    "pruned, k-means": (then(prune(), palettize("kmeans", **EIGHTS)), [SPARSE_LUT, SPARSE]),
    "2 of 4, palettes": (then(prune(n_m_ratio=[2, 4]), palettize(**EIGHTS)), [SPARSE_LUT, SPARSE]),
    "pruned, int8": (then(prune(), linear()), [SPARSE_SCALE, SPARSE]),
    "pruned, int4 by block": (
        then(prune(), linear(dtype="int4", granularity="per_block", block_size=8)),
        [SPARSE_SCALE, SPARSE],
    ),
    "palettes of int8": (then(palettize(**EIGHTS), linear(**TENSOR)), [SCALE, LUT]),
    "palettes of uint4": (
        then(palettize(**EIGHTS), linear(dtype="uint4", mode="linear", **TENSOR)), [SCALE, LUT],
    ),
    "pairs of int8": (
        then(palettize("kmeans", nbits=2, cluster_dim=2, **EIGHTS), linear(**TENSOR)), [SCALE, LUT],
    ),
    "palettes, pruned": (then(palettize(**EIGHTS), prune()), [SPARSE_LUT, SPARSE]),
    "int8, pruned": (then(linear(), prune()), [SPARSE_SCALE, SPARSE]),
    "int8, palettes": (then(linear(), palettize(**EIGHTS)), [SCALE, LUT]),
    "int8 by block, palettes": (
        then(linear(granularity="per_block", block_size=8), palettize(**TENSOR)), [SCALE, LUT],
    ),
    "int8 of one scale, k-means": (
        then(linear(**TENSOR), palettize("kmeans", **EIGHTS)), [SCALE, LUT],
    ),
    "pruned, palettes of int8": (
        then(prune(), palettize(**EIGHTS), linear(**TENSOR)), [SCALE, SPARSE_LUT, SPARSE],
    ),
    "palettes, pruned, of int8": (
        then(palettize(**EIGHTS), prune(), linear(**TENSOR)), [SCALE, SPARSE_LUT, SPARSE],
    ),
}  # fmt: skip

CASES = [
    *(
        (target, name, asked, stages.get(target, stages[""]))
        for target in ("iOS16", "iOS18")
        for name, (asked, stages) in ANYWHERE.items()
    ),
    *(("iOS18", name, asked, stages) for name, (asked, stages) in SINCE_IOS18.items()),
]


@cache
def network(target: str) -> Any:
    """A convolution `[48, 32, 1, 1]` and a matrix product with `[48, 64]`."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    rng, version = np.random.default_rng(0), getattr(ct.target, target)
    conv, product = (rng.standard_normal(s).astype(np.float16) for s in ((48, 32, 1, 1), (48, 64)))
    half = ct.converters.mil.mil.types.fp16

    @mb.program(input_specs=[mb.TensorSpec((1, 32, 1, 1), dtype=half)], opset_version=version)
    def program(x: Any) -> Any:
        y = mb.conv(x=x, weight=mb.const(val=conv, name="conv"), name="first")
        flat = mb.reshape(x=y, shape=(1, 48))
        return mb.matmul(x=flat, y=mb.const(val=product, name="product"), name="y")

    with converter_notes():
        return ct.convert(program, minimum_deployment_target=version, skip_model_load=True)


def saved_network(target: str) -> Path:
    return Path(network(target).package_path)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Compress the network, save it, and judge what the file holds."""

    def built(
        asked: Asked, target: str = "iOS18", **policy: Any
    ) -> tuple[Verdict, Census, MLModel]:
        compression: Any = TypeAdapter(Compression).validate_python(asked)
        path = tmp_path / "m.mlpackage"
        shutil.rmtree(path, ignore_errors=True)
        notes = compress(saved_network(target), compression, path, "m:L00")
        found = read_model(path)
        census = take_census(found)
        plain = read_model(network(target).package_path)
        weights = compare_weights(found, plain, compression)
        verdict = judge(
            CompressionMeasurement(
                census, 1, notes, weights.distortions, "build", weights.missing, weights.extra
            ),
            asked=compression,
            policy=CompressionPolicy.model_validate(policy),
            subject="m:L00",
        )
        return verdict, census, found

    return built


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("target", "asked", "stages"),
    [(target, asked, stages) for target, _, asked, stages in CASES],
    ids=[f"{target}, {name}" for target, name, _, _ in CASES],
)
def test_what_is_asked_for_is_done(
    build: Build, target: str, asked: Asked, stages: list[str]
) -> None:
    verdict, census, _ = build(asked, target)
    assert verdict.reasons == ()
    assert [w.name for w in census.weights] == ["conv", "product"]
    for weight in census.weights:
        assert [stage.op for stage in weight.stages] == stages


def test_weights_by_operation_and_by_name(build: Build) -> None:
    """A name wins over an operation; both over what holds for all."""
    overrides = [
        {"weights": "pro*", "nbits": 6},
        {"op_type": "matmul", "nbits": 2},
        {"op_type": "conv", **linear()},
    ]
    verdict, census, _ = build({**palettize(**TENSOR), "overrides": overrides})
    assert verdict.reasons == ()
    conv, product = census.weights
    assert (conv.storage, conv.op_types) == (SCALE, ("conv",))
    assert (product.storage, product.nbits, product.op_types) == (LUT, 6, ("matmul",))


def test_chains_of_different_lengths_side_by_side(build: Build) -> None:
    asked = {
        **palettize(**EIGHTS),
        "overrides": [{"op_type": "conv", **then(prune(), linear(**TENSOR))}],
    }
    verdict, census, _ = build(asked)
    assert verdict.reasons == ()
    assert [[s.op for s in w.stages] for w in census.weights] == [[SPARSE_SCALE, SPARSE], [LUT]]


def test_shapes_that_do_not_divide_fail_by_name(build: Build) -> None:
    verdict, _, _ = build(then(prune(), palettize(group_size=32)))
    assert reasons(verdict) == [
        "conv [48, 32, 1, 1] was to have pruning, then 4-bit uniform palettization but is stored "
        "as constexpr_sparse_to_dense (48 output channels are not divisible by group_size 32); "
        "choose a setting that fits its shape, or name it in compression.keep"
    ]


def test_a_refusal_of_coremltools_is_one_sentence(tmp_path: Path) -> None:
    """As where settings of iOS 18 meet a program of iOS 16, which the manifest refuses before."""
    asked: Any = TypeAdapter(Compression).validate_python(palettize("kmeans", engine="coremltools"))
    with pytest.raises(BuildError, match=r"^m:L00 could not be compressed: The per_g"):
        compress(saved_network("iOS16"), asked, tmp_path / "m.mlpackage", "m:L00")


Q = st.floats(0, 1)


@given(values=st.lists(st.floats(0, 100, width=16), min_size=1, max_size=50), share=Q)
def test_as_many_values_as_numpy_would_take(values: list[float], share: float) -> None:
    array = np.array(values)
    ours, theirs = percentile(array, share * 100), np.percentile(array, share * 100)
    assert ours <= theirs * (1 + 1e-12)
    assert np.count_nonzero(array <= ours) >= np.floor(len(values) * share)


@pytest.fixture(scope="module")
def pruner() -> Any:
    import_coremltools()
    from coremltools.optimize.coreml._quantization_passes import prune_weights

    return prune_weights


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_weights_beyond_the_range_of_fp16(pruner: Any, share: float) -> None:
    weight = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float16)
    with exact_percentiles():
        stored = pruner.compress_by_magnitude(weight, share).nonzero_data
    zeros = 1 - len(stored) / weight.size
    assert share <= zeros < share + 0.01


def test_numpy_itself_stays_as_it_is(pruner: Any) -> None:
    before = np.percentile
    with exact_percentiles():
        assert np.percentile is before
    assert pruner.compress_by_magnitude.__globals__["np"] is np
