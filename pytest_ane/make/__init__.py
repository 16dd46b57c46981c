"""From a shard's description to its artifact: convert, compress, store in the cache."""

from __future__ import annotations

from pytest_ane.make.cache import Cache
from pytest_ane.make.distortion import Distortion, WeightComparison, compare_weights
from pytest_ane.make.record import Artifact, BuildRecord, uncompressed_package, weights_against
from pytest_ane.make.shard import build_shard, compressed, uncompressed
from pytest_ane.mlprogram.weights import Census, take_census

__all__ = [
    "Artifact", "BuildRecord", "Cache", "Census", "Distortion", "WeightComparison", "build_shard",
    "compare_weights", "compressed", "take_census", "uncompressed", "uncompressed_package",
    "weights_against",
]  # fmt: skip
