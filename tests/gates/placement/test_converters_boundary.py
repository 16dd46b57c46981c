"""What coremltools' converter puts at a program's boundary is not the author's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.placement import Forecast, forecast
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.digests import tree_bytes
from pytest_ane.mlprogram.model import read_model

LABELS = ["cat", "dog", "bird", "fish"]


def image(channels: int, **options: Any) -> Any:
    shape = (1, channels, 16, 16)
    return import_coremltools().ImageType("image", shape, **options)


def converted(folder: Path, given: Any, *, labels: bool = False, own: bool = False) -> Forecast:
    """The forecast of a small classifier of images.

    Args:
        folder: where the package goes.
        given: its input.
        labels: whether it is a classifier.
        own: whether its author multiplies by a constant in fp32.
    """
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    channels = given.shape.shape[1]

    @mb.program(input_specs=[mb.TensorSpec((1, channels, 16, 16))], opset_version=ct.target.iOS17)
    def program(image: Any) -> Any:
        x = mb.conv(x=image, weight=np.ones((4, channels, 16, 16), np.float32))
        if own:
            x = mb.mul(x=x, y=np.float32(0.5), name="own")
        return mb.softmax(x=mb.reshape(x=x, shape=[1, 4]), axis=-1, name="p")

    precision = ct.transform.FP16ComputePrecision(op_selector=lambda op: op.name != "own")
    with converter_notes():
        package = ct.convert(
            program, inputs=[given], convert_to="mlprogram", compute_precision=precision,
            classifier_config=ct.ClassifierConfig(LABELS) if labels else None,
            minimum_deployment_target=ct.target.iOS17, skip_model_load=True,
        )  # fmt: skip
    path = folder / "classifier.mlpackage"
    package.save(str(path))
    return forecast(read_model(path), size_bytes=tree_bytes(path))


@pytest.mark.parametrize(
    ("channels", "options", "scaling"),
    [
        (3, {"bias": [-0.5, -0.4, -0.3]}, 1),
        (3, {"scale": 1 / 127.5, "bias": [-1.0, -1.0, -1.0]}, 2),
        (1, {"scale": 1 / 255, "color_layout": "G"}, 1),
    ],
)
def test_the_scale_of_an_image_and_the_label_of_a_classifier_are_left_out(
    tmp_path: Path, channels: int, options: dict[str, Any], scaling: int
) -> None:
    found = converted(tmp_path, image(channels, **options), labels=channels == 1)
    assert (found.outcome, found.matches) == ("eligible", ())
    assert found.compute == {"conv": 1, "reshape": 1, "softmax": 1}
    assert found.left_out["image scaling"] == scaling
    assert found.left_out.get("classify", 0) == (channels == 1)
    assert found.left_out["boundary cast"] == 2


def test_an_fp32_product_of_the_authors_own_is_ineligible(tmp_path: Path) -> None:
    found = converted(tmp_path, image(3, scale=1 / 255), labels=True, own=True)
    assert [(match.op, match.rule) for match in found.of("ineligible")] == [("own", "R021")]
