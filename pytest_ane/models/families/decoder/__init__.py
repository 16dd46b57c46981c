"""The decoder core: one reference and one ANE form, whose parts a configuration chooses.

A family of decoders is a `DecoderFamily`: what its files call things, and a function that reads its
configuration. `config` has the parts there are; `settings` reads configurations of either kind of
file by their `keys`, `rope` the angles, `weights` the tensors by their `names`; `reference` and
`ane` compute; `model` is what the rest of the project sees.
"""

from __future__ import annotations

from pytest_ane.models.families.decoder.config import DecoderConfig, Layer, Mixture
from pytest_ane.models.families.decoder.family import DecoderFamily
from pytest_ane.models.families.decoder.model import DecoderModel
from pytest_ane.models.families.decoder.plain import biases, plain
from pytest_ane.models.families.decoder.settings import Settings, layers_of

__all__ = [
    "DecoderConfig",
    "DecoderFamily",
    "DecoderModel",
    "Layer",
    "Mixture",
    "Settings",
    "biases",
    "layers_of",
    "plain",
]
