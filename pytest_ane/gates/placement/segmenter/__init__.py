"""Predicted placement: which operations Core ML will send to the ANE, by its own cost model.

A prediction names chip and system. It is never a measurement: only a plan can say `resident`.
"""

from pytest_ane.gates.placement.segmenter._costs import MOVES, flops
from pytest_ane.gates.placement.segmenter._predict import predict, predict_model
from pytest_ane.gates.placement.segmenter._records import (
    Off,
    Op,
    Placed,
    Predicted,
    Prediction,
    Segment,
    Tensor,
)

__all__ = [
    "MOVES", "Off", "Op", "Placed", "Predicted", "Prediction", "Segment", "Tensor", "flops",
    "predict", "predict_model",
]  # fmt: skip
