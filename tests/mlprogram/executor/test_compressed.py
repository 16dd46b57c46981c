"""Weights that coremltools compressed, expanded as its own `decompress_weights` expands them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model

Step = tuple[str, dict[str, Any]]


def palettes(joint: bool = False, **options: Any) -> Step:
    return "palettize", {"joint": joint, "mode": "uniform", **options}


def integers(mode: str = "linear", joint: bool = False, **options: Any) -> Step:
    return "quantize", {"joint": joint, "mode": mode, **options}


HALF: Step = ("prune", {"joint": False, "target_sparsity": 0.5})
GROUPS = {"granularity": "per_grouped_channel", "group_size": 4}
BLOCKS = {"granularity": "per_block", "block_size": 4}
TENSOR = {"granularity": "per_tensor"}

EVERYWHERE: dict[str, tuple[Step, ...]] = {
    "palettes of 1 bit": (palettes(nbits=1),),
    "palettes of 4 bits": (palettes(nbits=4),),
    "palettes of 6 bits": (palettes(nbits=6),),
    "palettes of 8 bits": (palettes(nbits=8),),
    "int8": (integers(),),
    "int8, symmetric": (integers("linear_symmetric"),),
    "uint8, one scale": (integers(dtype="uint8", **TENSOR),),
    "half of the weights": (HALF,),
}
SINCE_IOS18: dict[str, tuple[Step, ...]] = {
    "palettes of 3 bits": (palettes(nbits=3),),
    "palettes by output channels": (palettes(nbits=4, **GROUPS),),
    "palettes by input channels": (palettes(nbits=2, channel_axis=1, **GROUPS),),
    "palettes of pairs": (palettes(nbits=2, mode="kmeans", cluster_dim=2),),
    "palettes and a scale by channel": (palettes(nbits=4, enable_per_channel_scale=True),),
    "int4 with offsets": (integers(dtype="int4"),),
    "uint4 with offsets": (integers(dtype="uint4"),),
    "int4 by blocks": (integers("linear_symmetric", dtype="int4", **BLOCKS),),
    "pruned and palettized": (HALF, palettes(True, nbits=4)),
    "pruned and palettized by groups": (HALF, palettes(True, nbits=4, **GROUPS)),
    "pruned and int8": (HALF, integers(joint=True)),
    "pruned and int4": (HALF, integers("linear_symmetric", True, dtype="int4")),
    "palettes of int8": (palettes(nbits=4), integers(joint=True, **TENSOR)),
    "pruned and palettes of int8": (
        HALF, palettes(True, nbits=4), integers(joint=True, **TENSOR)
    ),
}  # fmt: skip

CASES = [
    *((target, name, EVERYWHERE[name]) for target in ("iOS16", "iOS17") for name in EVERYWHERE),
    *(("iOS18", name, steps) for name, steps in (EVERYWHERE | SINCE_IOS18).items()),
]


@cache
def network(target: str) -> Any:
    """Two convolutions, `x [1, 8, 4, 4]` to `y [1, 12, 2, 2]`."""
    from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools

    ct = import_coremltools()
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Conv2d(8, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 12, 1)
    with torch.no_grad(), converter_notes():
        traced = torch.jit.trace(torch.nn.Sequential(*layers).eval(), torch.zeros(1, 8, 4, 4))
        return ct.convert(
            traced, inputs=[ct.TensorType("x", (1, 8, 4, 4), dtype=np.float16)],
            outputs=[ct.TensorType("y", dtype=np.float16)], convert_to="mlprogram",
            minimum_deployment_target=ct.target[target], skip_model_load=True,
        )  # fmt: skip


def compressed(model: Any, step: Step) -> Any:
    import coremltools.optimize.coreml as cto

    kind, options = step[0], dict(step[1])
    joint = options.pop("joint")
    ways: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "palettize": (cto.palettize_weights, cto.OpPalettizerConfig),
        "quantize": (cto.linear_quantize_weights, cto.OpLinearQuantizerConfig),
        "prune": (cto.prune_weights, cto.OpMagnitudePrunerConfig),
    }
    work, config = ways[kind]
    options = cto.OptimizationConfig(global_config=config(weight_threshold=0, **options))
    return work(model, options, joint_compression=joint)


def weights(path: Path) -> tuple[Session, list[Any], list[str]]:
    """A package's session, its convolutions' weights, and the operations that expand them."""
    model = read_model(path)
    session = Session(model)
    operations = model.program.main.block.operations
    names = [op.inputs["weight"][0].name for op in operations if op.op == "conv"]
    x = np.ones((1, 8, 4, 4), np.float16)
    found = session.predict({"x": x}, outputs=names)
    expanding = [op.op for op in operations if op.op.startswith("constexpr_")]
    return session, [found[name] for name in names], expanding


@pytest.mark.drawn
@pytest.mark.parametrize(("target", "name", "steps"), CASES, ids=[f"{t}, {n}" for t, n, _ in CASES])
def test_as_coremltools_expands_them(
    target: str, name: str, steps: tuple[Step, ...], tmp_path: Path
) -> None:
    from pytest_ane.make.coremltools_quiet import converter_notes

    model = network(target)
    with converter_notes():
        import coremltools.optimize.coreml as cto

        for step in steps:
            model = compressed(model, step)
        model.save(str(tmp_path / "small.mlpackage"))
        cto.decompress_weights(model).save(str(tmp_path / "plain.mlpackage"))
    small, ours, expanding = weights(tmp_path / "small.mlpackage")
    plain, theirs, nothing = weights(tmp_path / "plain.mlpackage")
    assert len(expanding) >= 2 * len([s for s in steps if not s[1]["joint"]])
    assert nothing == []
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other, strict=True)
    x = np.random.default_rng(0).standard_normal((1, 8, 4, 4)).astype(np.float16)
    np.testing.assert_array_equal(small.predict({"x": x})["y"], plain.predict({"x": x})["y"])


def saved(program: Any, target: str, path: Path) -> Path:
    import coremltools as ct

    from pytest_ane.make.coremltools_quiet import converter_notes

    with converter_notes():
        ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=ct.target[target],
            compute_precision=ct.precision.FLOAT32,
            skip_model_load=True,
        ).save(str(path))
    return path


@pytest.mark.parametrize("target", ["iOS16", "iOS18"])
def test_weights_cast(target: str, tmp_path: Path) -> None:
    from pytest_ane.make.coremltools_quiet import import_coremltools

    ct = import_coremltools()
    from coremltools.converters.mil.mil import Builder as mb

    half = np.arange(40, dtype=np.float16).reshape(2, 20)

    @mb.program(input_specs=[mb.TensorSpec((1, 20))], opset_version=ct.target[target])
    def program(x: Any) -> Any:
        return mb.linear(x=x, weight=mb.constexpr_cast(source_val=half, output_dtype="fp32"),
                         name="y")  # fmt: skip

    model = read_model(saved(program, target, tmp_path / "m.mlpackage"))
    assert "constexpr_cast" in [op.op for op in model.program.main.block.operations]
    result = Session(model).predict({"x": np.ones((1, 20), np.float32)})
    np.testing.assert_array_equal(result["y"], half.astype(np.float32).sum(axis=1)[None])
