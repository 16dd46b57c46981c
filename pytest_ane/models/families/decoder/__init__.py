"""The decoder core: one ANE form, whose parts a configuration chooses.

A family of decoders is a `DecoderFamily`: what its files call things, and a function that reads its
configuration.
"""

from __future__ import annotations

from pytest_ane.models.families.decoder._config import DecoderConfig, Layer, Mixture
from pytest_ane.models.families.decoder._model import DecoderFamily, DecoderModel
from pytest_ane.models.families.decoder._settings import Settings, biases, layers_of, plain

__all__ = [
    "DecoderConfig", "DecoderFamily", "DecoderModel", "Layer", "Mixture", "Settings", "biases",
    "layers_of", "plain",
]  # fmt: skip
