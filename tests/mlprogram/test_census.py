"""The census: what became of every weight, read from programs that coremltools wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import (
    Block,
    DType,
    Function,
    MLModel,
    Named,
    Operation,
    Program,
    Ref,
    TensorType,
    Value,
)
from pytest_ane.mlprogram.weights import Census, Stage, Weight, take_census

SHAPE = (96, 64, 1, 1)
NORM = Weight("norm", (1, 64, 1, 1), 128, 16, op_types=("mul",))
Take = Callable[..., Census]


@pytest.fixture(scope="module")
def convolution() -> Callable[[str], Any]:
    """A product with a vector and a 1x1 convolution, converted for a target."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    rng = np.random.default_rng(0)
    weight, norm = (rng.standard_normal(s).astype(np.float16) for s in (SHAPE, (1, 64, 1, 1)))

    def convert(target: str) -> Any:
        version = getattr(ct.target, target)
        half = ct.converters.mil.mil.types.fp16

        @mb.program(input_specs=[mb.TensorSpec((1, 64, 1, 8), dtype=half)], opset_version=version)
        def program(x: Any) -> Any:
            scaled = mb.mul(x=x, y=mb.const(val=norm, name="norm"))
            return mb.conv(x=scaled, weight=mb.const(val=weight, name="w"), name="y")

        with converter_notes():
            return ct.convert(program, minimum_deployment_target=version, skip_model_load=True)

    return convert


@pytest.fixture
def take(convolution: Callable[[str], Any], tmp_path: Path) -> Take:
    """The census of that model, compressed by a pass of `coremltools.optimize.coreml`."""

    def compressed(target: str, apply: str = "", config: str = "", **options: Any) -> Census:
        model = convolution(target)
        cto = import_coremltools().optimize.coreml
        with converter_notes():
            if apply:
                settings = getattr(cto, config)(**options)
                model = getattr(cto, apply)(model, cto.OptimizationConfig(settings))
            model.save(str(tmp_path / "m.mlpackage"))
        return take_census(read_model(tmp_path / "m.mlpackage"))

    return compressed


PALETTE = ("palettize_weights", "OpPalettizerConfig")
LINEAR = ("linear_quantize_weights", "OpLinearQuantizerConfig")
GROUPED = {"granularity": "per_grouped_channel", "group_size": 32}


@pytest.mark.parametrize("target", ["iOS16", "iOS18"])
def test_uncompressed(take: Take, target: str) -> None:
    census = take(target)
    assert census.weights == (NORM, Weight("w", SHAPE, 12_288, 16, op_types=("conv",)))
    assert census.dense_bytes == census.stored_bytes == 12_416


@pytest.mark.parametrize(
    ("target", "nbits", "stored"),
    [
        # Before iOS 18 indices are packed into bytes, and the shape is stored beside them.
        ("iOS16", 4, 3072 + 32 + 16),
        ("iOS16", 6, 4608 + 128 + 16),
        ("iOS18", 4, 3072 + 32),
        ("iOS18", 6, 4608 + 128),
        ("iOS18", 1, 768 + 4),
    ],
)
def test_one_table(take: Take, target: str, nbits: int, stored: int) -> None:
    census = take(target, *PALETTE, mode="uniform", nbits=nbits)
    stages = (Stage("constexpr_lut_to_dense", nbits),)
    palettized = Weight("w", SHAPE, stored, nbits, stages, op_types=("conv",))
    assert census.weights == (NORM, palettized)
    assert census.stored_bytes == 128 + stored


def test_a_table_for_each_group_of_channels(take: Take) -> None:
    census = take("iOS18", *PALETTE, mode="uniform", nbits=6, **GROUPED)
    stored = 4608 + 3 * 128
    stages = (Stage("constexpr_lut_to_dense", 6, groups=3),)
    assert census.weights[1] == Weight("w", SHAPE, stored, 6, stages, op_types=("conv",))


def test_a_table_of_vectors(take: Take) -> None:
    census = take("iOS18", *PALETTE, mode="kmeans", nbits=4, cluster_dim=2, **GROUPED)
    assert census.weights[1].nbits == 4
    assert census.weights[1].groups == 3
    assert census.weights[1].shape == SHAPE


def test_tables_that_are_scaled_by_channel_are_counted_with_their_scales(take: Take) -> None:
    options = {"mode": "uniform", "nbits": 4, "enable_per_channel_scale": True, **GROUPED}
    found = take("iOS18", *PALETTE, **options).weights[1]
    assert (found.name, found.storage, found.nbits, found.groups) == (
        "w",
        "constexpr_lut_to_dense",
        4,
        3,
    )
    assert found.compressed_bytes > 3072 + 3 * 32
    assert found.stages == (
        Stage("constexpr_blockwise_shift_scale", 16, 1, 64, of_table=True),
        Stage("constexpr_lut_to_dense", 4, 3, 64),
    )


def test_a_weight_that_was_declined_shows_as_fp16(take: Take) -> None:
    options = {"granularity": "per_grouped_channel", "group_size": 17}
    census = take("iOS18", *PALETTE, mode="uniform", nbits=4, **options)
    assert census.weights[1].storage == "const"


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("iOS16", {}, ("constexpr_affine_dequantize", 8, 96, 1)),
        ("iOS18", {}, ("constexpr_blockwise_shift_scale", 8, 96, 1)),
        ("iOS18", {"granularity": "per_tensor"}, ("constexpr_blockwise_shift_scale", 8, 1, 1)),
        (
            "iOS18",
            {"granularity": "per_block", "block_size": 32, "dtype": "int4"},
            ("constexpr_blockwise_shift_scale", 4, 96, 2),
        ),
    ],
)
def test_quantized(
    take: Take, target: str, options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    found = take(target, *LINEAR, mode="linear_symmetric", **options).weights[1]
    assert (found.storage, found.nbits, found.groups, found.blocks) == expected
    assert (found.name, found.elements) == ("w", 6144)


def test_quantized_by_block_in_bytes(take: Take) -> None:
    """4-bit integers, and a scale of 2 bytes for each of 96 x 2 blocks."""
    options = {"granularity": "per_block", "block_size": 32, "dtype": "int4"}
    found = take("iOS18", *LINEAR, mode="linear_symmetric", **options).weights[1]
    assert found.compressed_bytes == 3072 + 2 * 96 * 2


@pytest.mark.parametrize("target", ["iOS16", "iOS18"])
def test_pruned(take: Take, target: str) -> None:
    options = {"target_sparsity": 0.5}
    found = take(target, "prune_weights", "OpMagnitudePrunerConfig", **options).weights[1]
    assert (found.name, found.storage) == ("w", "constexpr_sparse_to_dense")
    assert 6144 < found.compressed_bytes < 7000
    assert found.stages == (Stage("constexpr_sparse_to_dense", 16),)
    assert 0.5 <= found.sparsity < 0.501


@pytest.mark.parametrize("target", ["iOS16", "iOS18"])
def test_an_uncompressed_weight_leaves_nothing_out(take: Take, target: str) -> None:
    assert take(target).weights[1].sparsity == 0.0


def test_the_census_is_json() -> None:
    assert Census((NORM,)).to_dict() == {
        "weights": [
            {
                "name": "norm",
                "shape": (1, 64, 1, 1),
                "compressed_bytes": 128,
                "nbits": 16,
                "stages": (),
                "sparsity": 0.0,
                "op_types": ("mul",),
            }
        ]
    }


HALF = TensorType(DType.FP16, (2, 3))


def const(name: str, kind: TensorType = HALF) -> Operation:
    value = Value(kind, np.zeros(kind.shape))
    return Operation("const", {}, (Named(name, kind),), {"val": value})


def add(name: str, *inputs: str) -> Operation:
    return Operation("add", {"x": tuple(Ref(i) for i in inputs)}, (Named(name, HALF),))


def census_of(**functions: list[Operation]) -> list[str]:
    """Names of the weights of functions written by hand."""
    program = Program(
        {
            name: Function(name, "CoreML8", (), Block((), tuple(operations), ()))
            for name, operations in functions.items()
        }
    )
    return [w.name for w in take_census(MLModel("m", "m", 9, (), (), (), program)).weights]


def test_what_counts() -> None:
    twice = [const("w"), add("a", "w"), add("b", "w", "a")]
    assert census_of(main=twice) == ["w"]
    assert census_of(main=twice, decode=twice) == ["w"]
    main, other = [const("w"), add("a", "w")], [const("v"), add("a", "v")]
    assert census_of(main=main, decode=other) == ["w", "v"]
    wide = TensorType(DType.FP32, (2, 3))
    main, other = [const("w"), add("a", "w")], [const("w", wide), add("a", "w")]
    assert census_of(main=main, decode=other) == ["w", "w"]
    assert census_of(main=[const("unused"), add("a")]) == []


@pytest.mark.parametrize(
    "kind",
    [
        TensorType(DType.INT32, (4,)),
        TensorType(DType.BOOL, (2,)),
        TensorType(DType.FP16, ()),
        TensorType(DType.FP16, (None, 2)),
    ],
    ids=str,
)
def test_indices_flags_and_scalars_are_no_weights(kind: TensorType) -> None:
    operation = Operation("const", {}, (Named("c", kind),), {})
    assert census_of(main=[operation, add("a", "c")]) == []


def test_operations_that_expand_one_another_without_end_are_given_up() -> None:
    """As a hostile file may have it: each level names the one before twice."""
    levels = [const("l0")]
    for i in range(1, 64):
        inputs = {"data": (Ref(f"l{i - 1}"),), "scale": (Ref(f"l{i - 1}"),)}
        levels.append(Operation("constexpr_cast", inputs, (Named(f"l{i}", HALF),)))
    assert census_of(main=[*levels, add("a", "l63")]) == ["l63"]


def test_a_shape_that_no_weight_has() -> None:
    huge = Operation("const", {}, (Named("w", TensorType(DType.FP16, (2**40, 2**40))),), {})
    with pytest.raises(
        ProgramError, match="m: the weight w is damaged: no weight has such a shape"
    ):
        census_of(main=[huge, add("a", "w")])
