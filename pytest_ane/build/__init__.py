"""From a shard's description to its artifact: convert, compress, store in the cache."""

from __future__ import annotations

from pytest_ane.build.cache import Cache
from pytest_ane.build.census import Census, take_census
from pytest_ane.build.distortion import Distortion, WeightComparison, compare_weights
from pytest_ane.build.record import Artifact, BuildRecord, uncompressed_package, weights_against
from pytest_ane.build.shard import build_shard, compressed, uncompressed

__all__ = [
    "Artifact",
    "BuildRecord",
    "Cache",
    "Census",
    "Distortion",
    "WeightComparison",
    "build_shard",
    "compare_weights",
    "compressed",
    "take_census",
    "uncompressed",
    "uncompressed_package",
    "weights_against",
]
