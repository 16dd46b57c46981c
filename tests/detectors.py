"""Object detectors as exporters of YOLO build them: an ML Program, then Core ML's suppression."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = ("cat", "dog", "bird")


@cache
def _decoder() -> tuple[Any, str]:
    """The specification of `image [1, 3, 32, 32]` to 64 rows of 3 confidences and of 4 numbers."""
    import torch

    from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools

    ct = import_coremltools()
    rng = np.random.default_rng(5)
    centres = np.stack(np.meshgrid(np.arange(8), np.arange(8), indexing="xy"), -1).reshape(-1, 2)

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classes = torch.nn.Conv2d(3, 3, 4, 4)
            self.sizes = torch.nn.Conv2d(3, 2, 4, 4)
            self.register_buffer("centres", torch.tensor((centres + 0.5) / 8).float())

        def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            image = image / 255
            confidence = torch.sigmoid(self.classes(image)).flatten(2)[0].transpose(0, 1)
            sizes = 0.1 + 0.3 * torch.sigmoid(self.sizes(image)).flatten(2)[0].transpose(0, 1)
            return confidence, torch.cat([self.centres, sizes], 1)

    module = Decoder().eval()
    with torch.no_grad(), converter_notes():
        for parameter in module.parameters():
            values = rng.standard_normal(tuple(parameter.shape)).astype(np.float32)
            parameter.copy_(torch.from_numpy(values))
        shape = (1, 3, 32, 32)
        traced = torch.jit.trace(module, torch.zeros(shape), check_trace=False)
        model = ct.convert(
            traced,
            inputs=[ct.ImageType("image", shape)],
            outputs=[ct.TensorType("raw_confidence"), ct.TensorType("raw_coordinates")],
            minimum_deployment_target=ct.target.iOS16,
            skip_model_load=True,
        )
    return model.get_spec(), model.weights_dir


def detector(path: Path, *, spoilt: float = 1.0, names: bool = False, **settings: Any) -> Path:
    """Save a pipeline of a decoder and a suppression.

    Args:
        path: where to.
        spoilt: factor of the confidences' weights; another than 1 makes a wrong detector.
        names: whether the pipeline names its parts.
        settings: of `suppression`.
    """
    from pytest_ane.make.coremltools_quiet import import_coremltools

    ct = import_coremltools()
    spec, weights = _decoder()
    copy = type(spec)()
    copy.CopyFrom(spec)
    for output, shape in zip(copy.description.output, ((64, 3), (64, 4)), strict=True):
        output.type.multiArrayType.shape[:] = shape
    if spoilt != 1:
        _scale(copy, spoilt)
    decoder = ct.models.MLModel(copy, weights_dir=weights, skip_model_load=True)
    nms = ct.models.MLModel(suppression(copy, **settings), skip_model_load=True)
    double = ct.models.datatypes.Double()
    pipeline = ct.models.pipeline.Pipeline(
        input_features=[
            ("image", ct.models.datatypes.Array(3, 32, 32)),
            ("iouThreshold", double),
            ("confidenceThreshold", double),
        ],
        output_features=["confidence", "coordinates"],
    )
    pipeline.add_model(decoder)
    pipeline.add_model(nms)
    description = pipeline.spec.description
    description.input[0].CopyFrom(copy.description.input[0])
    for i, output in enumerate(nms.get_spec().description.output):
        description.output[i].CopyFrom(output)
    pipeline.spec.specificationVersion = 7
    if names:
        pipeline.spec.pipeline.names.extend(["decoder", "nms"])
    whole = ct.models.MLModel(pipeline.spec, weights_dir=weights, skip_model_load=True)
    whole.save(str(path))
    return path


def suppression(
    decoder: Any,
    iou: float = 0.3,
    confidence: float = 0.6,
    per_class: bool = True,
    labels: tuple[str | int, ...] = CLASSES,
    rows: tuple[int, int] = (0, -1),
) -> Any:
    """The specification of a suppression of a decoder's outputs."""
    spec = type(decoder)()
    spec.specificationVersion = 5
    for output, name in zip(decoder.description.output, ("confidence", "coordinates"), strict=True):
        spec.description.input.add().CopyFrom(output)
        kept = spec.description.output.add()
        kept.CopyFrom(output)
        kept.name = name
        array = kept.type.multiArrayType
        for low, high in (rows, (output.type.multiArrayType.shape[1],) * 2):
            size = array.shapeRange.sizeRanges.add()
            size.lowerBound, size.upperBound = low, high
        del array.shape[:]
    nms = spec.nonMaximumSuppression
    nms.confidenceInputFeatureName = decoder.description.output[0].name
    nms.coordinatesInputFeatureName = decoder.description.output[1].name
    nms.confidenceOutputFeatureName = "confidence"
    nms.coordinatesOutputFeatureName = "coordinates"
    nms.iouThresholdInputFeatureName = "iouThreshold"
    nms.confidenceThresholdInputFeatureName = "confidenceThreshold"
    nms.iouThreshold, nms.confidenceThreshold = iou, confidence
    nms.pickTop.perClass = per_class
    texts = all(isinstance(label, str) for label in labels)
    vector = nms.stringClassLabels if texts else nms.int64ClassLabels
    vector.vector.extend(labels)
    return spec


def _scale(spec: Any, factor: float) -> None:
    """Put a multiplication by a factor between the confidences' convolution and its sigmoid."""
    from tests.mlprogram.packages import set_type

    block = next(iter(spec.mlProgram.functions["main"].block_specializations.values()))
    at = next(i for i, op in enumerate(block.operations) if op.type == "sigmoid")
    sigmoid = block.operations[at]
    x = sigmoid.inputs["x"].arguments[0].name
    made = next(o for op in block.operations for o in op.outputs if o.name == x)
    operations = list(block.operations)
    del block.operations[:]
    for i, operation in enumerate(operations):
        if i == at:
            constant = block.operations.add()
            constant.type = "const"
            out = constant.outputs.add()
            out.name = "factor"
            set_type(out.type, "FLOAT16", ())
            value = constant.attributes["val"]
            set_type(value.type, "FLOAT16", ())
            value.immediateValue.tensor.bytes.values = np.float16(factor).tobytes()
            product = block.operations.add()
            product.type = "mul"
            product.inputs["x"].arguments.add().name = x
            product.inputs["y"].arguments.add().name = "factor"
            result = product.outputs.add()
            result.CopyFrom(made)
            result.name = "scaled"
            operation.inputs["x"].arguments[0].name = "scaled"
        block.operations.add().CopyFrom(operation)
