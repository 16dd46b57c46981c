"""Which compression settings a deployment target knows."""

from __future__ import annotations

from pytest_ane.manifest.compression import Settings
from pytest_ane.manifest.steps import LinearStep, PalettizeStep, Step


def beyond(settings: Settings, target: str) -> str | None:
    """The setting that a deployment target before iOS 18 does not know; `None` where all fits.

    Source: coremltools 9.0, `optimize/coreml/_quantization_passes.py`, the `transform_op`s and
    `AbstractCompressionPass.apply`.
    """
    if target not in ("iOS16", "iOS17"):
        return None
    if len(settings.steps) > 1:
        return "joint compression"
    return next((new for step in settings.steps if (new := _new(step))), None)


def _new(step: Step) -> str | None:
    """The first setting of one step that needs iOS 18."""
    if isinstance(step, LinearStep):
        new = {"granularity": ("per_block",), "dtype": ("int4", "uint4")}
    elif isinstance(step, PalettizeStep):
        if step.cluster_dim > 1:
            return f"cluster_dim = {step.cluster_dim}"
        if step.enable_per_channel_scale:
            return "enable_per_channel_scale = true"
        if step.nbits == 3 and step.mode != "unique":
            return "nbits = 3"
        new = {"granularity": ("per_grouped_channel",)}
    else:
        return None
    for key, values in new.items():
        if (value := getattr(step, key)) in values:
            return f"{key} = {value}"
    return None
