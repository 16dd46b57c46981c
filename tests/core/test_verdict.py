"""A verdict gives reasons exactly when it is not passed."""

from __future__ import annotations

import pytest

from pytest_ane.core.verdict import Status, Verdict


@pytest.mark.parametrize(
    ("status", "reasons"), [("passed", ()), ("failed", ("Bad.",)), ("unproven", ("Nothing.",))]
)
def test_status_and_reasons_that_agree(status: Status, reasons: tuple[str, ...]) -> None:
    verdict = Verdict("fidelity", "smollm2:L01", status, "a summary", reasons)
    assert (verdict.status, verdict.reasons, verdict.facts) == (status, reasons, {})


@pytest.mark.parametrize(
    ("status", "reasons"), [("passed", ("Bad.",)), ("failed", ()), ("unproven", ())]
)
def test_status_and_reasons_that_contradict_each_other(
    status: Status, reasons: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match="reasons exactly when it is not passed"):
        Verdict("fidelity", "smollm2:L01", status, "a summary", reasons)
