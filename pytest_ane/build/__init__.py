"""From a shard's description to its artifact: convert, compress, store in the cache."""

from __future__ import annotations

from pytest_ane.build.cache import Cache
from pytest_ane.build.census import Census, take_census
from pytest_ane.build.distortion import Distortion, distortions
from pytest_ane.build.record import Artifact, BuildRecord, uncompressed_package, weight_distortions
from pytest_ane.build.shard import build_shard, compressed, uncompressed

__all__ = [
    "Artifact",
    "BuildRecord",
    "Cache",
    "Census",
    "Distortion",
    "build_shard",
    "compressed",
    "distortions",
    "take_census",
    "uncompressed",
    "uncompressed_package",
    "weight_distortions",
]
