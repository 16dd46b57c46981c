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
    assert census.weights[1].sparsity == 0.0


def lut(nbits: int, groups: int = 1, blocks: int = 1) -> Stage:
    return Stage("constexpr_lut_to_dense", nbits, groups, blocks)


def scaled(nbits: int, groups: int, blocks: int = 1, op: str = "blockwise_shift_scale") -> Stage:
    return Stage(f"constexpr_{op}", nbits, groups, blocks)


UNIFORM, SYMMETRIC = {"mode": "uniform"}, {"mode": "linear_symmetric"}
BLOCKS = {"granularity": "per_block", "block_size": 32, "dtype": "int4"}


@pytest.mark.parametrize(
    ("target", "apply", "options", "stages", "stored"),
    [
        # Before iOS 18 indices are packed into bytes, and the shape is stored beside them.
        ("iOS16", PALETTE, {"nbits": 4, **UNIFORM}, [lut(4)], 3072 + 32 + 16),
        ("iOS16", PALETTE, {"nbits": 6, **UNIFORM}, [lut(6)], 4608 + 128 + 16),
        ("iOS18", PALETTE, {"nbits": 6, **UNIFORM}, [lut(6)], 4608 + 128),
        ("iOS18", PALETTE, {"nbits": 1, **UNIFORM}, [lut(1)], 768 + 4),
        ("iOS18", PALETTE, {"nbits": 6, **UNIFORM, **GROUPED}, [lut(6, 3)], 4608 + 3 * 128),
        ("iOS18", PALETTE, {"nbits": 4, "enable_per_channel_scale": True, **UNIFORM, **GROUPED},
         [Stage("constexpr_blockwise_shift_scale", 16, 1, 64, of_table=True), lut(4, 3, 64)], None),
        ("iOS16", LINEAR, SYMMETRIC, [scaled(8, 96, op="affine_dequantize")], None),
        ("iOS18", LINEAR, SYMMETRIC, [scaled(8, 96)], None),
        ("iOS18", LINEAR, {"granularity": "per_tensor", **SYMMETRIC}, [scaled(8, 1)], None),
        # 4-bit integers, and a scale of 2 bytes for each of 96 x 2 blocks.
        ("iOS18", LINEAR, {**BLOCKS, **SYMMETRIC}, [scaled(4, 96, 2)], 3072 + 2 * 96 * 2),
        # A group of 17 channels divides nothing: the pass declines without a word.
        ("iOS18", PALETTE, {"nbits": 4, **UNIFORM, **GROUPED, "group_size": 17}, [], 12_288),
    ],
)  # fmt: skip
def test_compressed(
    take: Take, target: str, apply: Any, options: Any, stages: list[Stage], stored: int | None
) -> None:
    census = take(target, *apply, **options)
    found = census.weights[1]
    assert (found.name, found.shape, found.stages) == ("w", SHAPE, tuple(stages))
    assert found.nbits == (stages[-1].nbits if stages else 16)
    assert found.compressed_bytes == (stored or found.compressed_bytes)
    assert census.stored_bytes == 128 + found.compressed_bytes
    if stages:
        assert (found.storage, found.groups) == (stages[-1].op, stages[-1].groups)


@pytest.mark.parametrize("target", ["iOS16", "iOS18"])
def test_pruned(take: Take, target: str) -> None:
    options = {"target_sparsity": 0.5}
    found = take(target, "prune_weights", "OpMagnitudePrunerConfig", **options).weights[1]
    assert found.stages == (Stage("constexpr_sparse_to_dense", 16),)
    assert 6144 < found.compressed_bytes < 7000
    assert 0.5 <= found.sparsity < 0.501


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
    ("dtype", "shape"),
    [(DType.INT32, (4,)), (DType.BOOL, (2,)), (DType.FP16, ()), (DType.FP16, (None, 2))],
)
def test_indices_flags_and_scalars_are_no_weights(dtype: DType, shape: Any) -> None:
    operation = Operation("const", {}, (Named("c", TensorType(dtype, shape)),), {})
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
