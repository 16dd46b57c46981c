"""The cost model's file: each number has a source and a certainty, or it is refused."""

from __future__ import annotations

from importlib.resources import files

import pytest

from pytest_ane.gates.placement.segmenter.model import (
    chip_named,
    launch_bounds,
    models,
    parse_models,
)
from pytest_ane.mlprogram.errors import ManifestError

TEXT = files("pytest_ane.gates.placement.segmenter").joinpath("model.toml").read_text("utf-8")


def test_a_chip_replaces_rates_and_thresholds_of_the_first() -> None:
    first, pro = models()["M4"], models()["M4 Pro"]
    assert first.rates["add"].ane == 35.9805
    assert (pro.rates["add"].ane, pro.rates["add"].bnns) == (26.546, 21.1222)
    assert (first.thresholds["conv-high"], pro.thresholds["conv-high"]) == (61.5, 112.0)
    assert (first.launch.ane, first.launch.bnns, first.end.gpu) == (0.125, 0.0, 0.125)


@pytest.mark.parametrize("name", ["m4 pro", "M4PRO", " M4  Pro "])
def test_a_chips_name_in_any_spelling(name: str) -> None:
    assert chip_named(name) == "M4 Pro"


def test_too_little_and_enough_work_are_far_from_a_launch() -> None:
    """Launch and end are 0.25 ms, launch and two switches 0.375 ms; four times apart."""
    assert launch_bounds() == (0.0625, 1.5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ane = 43.0", "ane = -43.0", "rate.3.ane"),
        ("ane = 43.0", "ane = nan", "rate.3.ane"),
        ('certainty = "one point"', 'certainty = "sure"', "certainty"),
        ('source = "S1, S2, S3"', 'source = "S1, S9"', "unknown source S9"),
        ('source = "S1, S2, S3"\n', "", "source"),
        ('kind = "end"', 'kind = "switch"', "launch, switch and end"),
        ('name = "gru"', 'name = "lstm"', "given twice"),
        ("[chip.rates.add]", "[chip.rates.plus]", "unknown rate plus"),
        ("[chip.thresholds]\nconv-high", "[chip.thresholds]\nconv-top", "threshold conv-top"),
        ('"M4 Max"', '"M4"', "chip M4: has costs"),
        ("far = 4.0", "far = 0.5", "far"),
        ("tie-ms = 1e-6", "tie-ms = ", "model.toml"),
    ],
)
def test_a_wrong_entry_is_refused(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(ManifestError, match=message):
        parse_models(TEXT.replace(old, new, 1))
