"""A package that calls its ports otherwise: what its family tells holds of it too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from pytest_ane.manifest.records import OwnPort
from pytest_ane.models.families import (
    Layout,
    Port,
    Ports,
    entry_scale,
    is_causal,
    recurrent_of,
    window_of,
)
from pytest_ane.models.families.layout import AneLayout
from pytest_ane.models.families.ports import RenamedLayout, renaming

X, Y = Port("x", (1, 4, "T", 1)), Port("y", (1, 4, "T", 1))


def renamed(layout: Any) -> RenamedLayout:
    own = {"x": OwnPort(name="hidden"), "y": OwnPort(name="out"), "tail": OwnPort(name="past")}
    ports = Ports((X,), (Y,), (Port("tail", (1, 2)),))
    return RenamedLayout(cast("Layout", layout), renaming("m:L00", ports, own))


def test_all_that_a_family_tells_of_its_layout() -> None:
    family = AneLayout("gemma3", 4, window=9, recurrent=("tail",), entry_scale=1 / 32)
    own = renamed(family)
    assert (own.width, own.sees, own.shifts) == (family.width, family.sees, family.shifts)
    assert (window_of(own), entry_scale(own), is_causal(own)) == (9, 1 / 32, True)
    assert recurrent_of(own) == ("past",)
    hidden = np.ones((2, 4), np.float32)
    assert own.inputs(hidden)["hidden"].shape == (1, 4, 2, 1)
    np.testing.assert_array_equal(own.output({"out": np.ones((1, 4, 2, 1), np.float32)}), hidden)


def test_what_a_family_of_the_user_s_own_leaves_out() -> None:
    own = renamed(SimpleNamespace(width=4, sees="itself"))
    assert (window_of(own), entry_scale(own), is_causal(own)) == (None, 1.0, True)
    assert recurrent_of(own) is None
