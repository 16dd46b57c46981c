"""R076: the size of an artifact, by system."""

from __future__ import annotations

import pytest

from pytest_ane.gates.placement.rules import limit_bytes, too_large
from pytest_ane.mlprogram.errors import ManifestError

GIB = 2**30


@pytest.mark.parametrize(
    ("os", "limit"),
    [
        ("macOS 15.2", 2 * GIB),
        ("macOS 26", 2 * GIB),
        ("macOS 27", GIB),
        ("macos 27.0.1", GIB),
        (" macOS  28 ", GIB),
        ("iOS 26", 2 * GIB),
    ],
)
def test_limits(os: str, limit: int) -> None:
    assert limit_bytes(os) == limit


def test_an_artifact_at_the_limit_is_fine_and_a_byte_more_is_not() -> None:
    assert too_large(2 * GIB, "macOS 26") is None
    assert too_large(2 * GIB + 1, "macOS 26") == (
        "The artifact has 2.00 GiB; macOS 26 takes 2 GiB at most."
    )
    assert too_large(1_500_000_000, "macOS 27") == (
        "The artifact has 1.40 GiB; macOS 27 takes 1 GiB at most."
    )


@pytest.mark.parametrize("os", ["", "27", "macOS", "macOS twenty", "Linux 6", "macOS 26; rm"])
def test_what_is_no_system_is_refused(os: str) -> None:
    with pytest.raises(ManifestError, match="is not a system; write it like 'macOS 26'"):
        limit_bytes(os)
