"""Programs of image operations, as coremltools writes each opset's, run from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import TensorType
from tests.mlprogram.executor import converted
from tests.mlprogram.executor.ops.oracle import noise

SHAPE, WINDOW = (2, 4, 5, 7), {"kernel_sizes": [3, 2], "strides": [2, 2]}
PADS: list[dict[str, Any]] = [{"pad_type": "valid"}, {"pad_type": "same"},
                              {"pad_type": "custom", "pad": [1, 1, 0, 0]}]  # fmt: skip
BOXES = np.array([[0, 0, 1, 1], [0, 1, 2, 3]], np.float32)


def _windows(mb: Any, x: Any) -> list[Any]:
    weight, grouped = noise(4, 3, 3, 2), noise(4, 2, 3, 2)
    steps = {"strides": [2, 1], "dilations": [1, 2]}
    found = [op(x=x, **WINDOW, **pad) for op in (mb.avg_pool, mb.max_pool, mb.l2_pool)
             for pad in [*PADS, {"pad_type": "valid", "ceil_mode": True}]]  # fmt: skip
    found += [mb.conv_transpose(x=x, weight=weight, **steps, **pad) for pad in PADS]
    found += [mb.conv(x=x, weight=grouped, groups=2, **steps, **pad) for pad in PADS]
    return [*found, mb.conv_transpose(x=x, weight=weight, groups=2, bias=noise(6))]


def _sizes(mb: Any, x: Any) -> list[Any]:
    factors = {"scale_factor_height": 2.0, "scale_factor_width": 1.3}
    size = {"target_size_height": 3, "target_size_width": 11}
    return [
        *(mb.pad(x=x, pad=[1, 2, 2, 1], mode=mode) for mode in ("constant", "reflect")),
        mb.upsample_nearest_neighbor(x=x, **factors),
        mb.upsample_bilinear(x=x, **factors, align_corners=False),
        mb.resize_nearest_neighbor(x=x, **size),
        mb.resize_bilinear(x=x, **size, sampling_mode="OFFSET_CORNERS"),
        mb.crop(x=x, crop_height=[1, 2], crop_width=[0, 1]),
    ]


def _samples(mb: Any, x: Any, level: int) -> list[Any]:
    modes = {"padding_value": 0.0, "coordinates_mode": "normalized_minus_one_to_one",
             "align_corners": True}  # fmt: skip
    size = {"target_height": 2, "target_width": 3}
    matrix = np.array([[1, 0, 0.1, 0.2, 1, 0]], np.float32)
    found = [
        mb.affine(x=x, transform_matrix=matrix, output_height=3, output_width=4,
                  sampling_mode="bilinear", padding_mode="constant", **modes),
        mb.resample(x=x, coordinates=noise(2, 3, 4, 2), sampling_mode="nearest",
                    padding_mode="reflection", **modes),
    ]  # fmt: skip
    if level < 17:
        return [*found, mb.crop_resize(x=x, roi=BOXES.reshape(2, 1, 4, 1, 1), **size)]
    indices = np.array([0, 1], np.int32)
    return [
        *found,
        mb.crop_resize(x=x, boxes=BOXES, box_indices=indices, **size),
        mb.resize(x=x, shape=[3, 0], resized_dims=np.uint32(2)),
        mb.reduce_argmax(x=x, axis=1, output_dtype="uint16"),
    ]


def _channels(mb: Any, x: Any) -> list[Any]:
    alpha = noise(4)
    return [
        mb.prelu(x=x, alpha=alpha),
        mb.softplus_parametric(x=x, alpha=alpha, beta=alpha),
        mb.linear_activation(x=x, alpha=2.0, beta=1.0),
        mb.thresholded_relu(x=x, alpha=0.5),
        mb.local_response_norm(x=x, size=3),
    ]


@pytest.mark.parametrize("level", [15, 16, 17, 18])
def test_results_have_the_declared_shapes(level: int, tmp_path: Path) -> None:
    with converted.quiet():
        import coremltools as ct
        from coremltools.converters.mil.mil import Builder as mb

        target = getattr(ct.target, f"iOS{level}")

        @mb.program(input_specs=[mb.TensorSpec(SHAPE)], opset_version=target)
        def program(x: Any) -> tuple[Any, ...]:
            parts = (_windows(mb, x), _sizes(mb, x), _samples(mb, x, level), _channels(mb, x))
            return tuple(value for part in parts for value in part)

        made = ct.convert(program, minimum_deployment_target=target, skip_model_load=True,
                          compute_precision=ct.precision.FLOAT32,
                          pass_pipeline=ct.PassPipeline.EMPTY)  # fmt: skip
        model = read_model(converted.save(made, tmp_path, "images"))
    found = Session(model).predict({"x": noise(*SHAPE, seed=3)})
    declared = {out.name: out.type for op in model.program.walk() for out in op.outputs}
    assert len(found) >= 34
    for name, array in found.items():
        kind = declared[name]
        assert isinstance(kind, TensorType)
        assert array.shape == kind.shape, name
        assert np.isfinite(array).all(), name
