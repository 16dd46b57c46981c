"""Paths that a package names stay below it."""

from __future__ import annotations

import pytest

from pytest_ane.mlprogram.package_files import stays_inside


@pytest.mark.parametrize(
    "name", ["weight.bin", "weights/weight.bin", "a/./b", "..weights", "a..b/c"]
)
def test_paths_below_the_package(name: str) -> None:
    assert stays_inside(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../weight.bin", "a/../../b", "/etc/passwd", "C:\\x", "\\x", "a\\..\\b", "C:x"],
)
def test_paths_that_leave_it(name: str) -> None:
    assert not stays_inside(name)
