"""The table printer."""

from __future__ import annotations

from pytest_ane.gates.verdict import Column, Table
from pytest_ane.report.table import columns, table

PROBES = Table(
    "probes",
    (Column("probe"), Column("cosine", "", 0.97, "above"), Column("SNR", "dB"), Column("note")),
    (("gaussian #0", 0.95, 17.72, None), ("captured", 1.0, None, None)),
)


def test_limits_are_in_the_head_and_a_wide_table_is_in_parts() -> None:
    assert list(table(PROBES)) == [
        "probes:",
        "probe        cosine >= 0.97  SNR dB",
        "gaussian #0          0.9500    17.7",
        "captured             1.0000",
    ]
    assert list(table(PROBES, width=30)) == [
        "probes:",
        "probe        cosine >= 0.97",
        "gaussian #0          0.9500",
        "captured             1.0000",
        "",
        "probe        SNR dB",
        "gaussian #0    17.7",
        "captured",
    ]


def test_a_last_column_of_text_is_wrapped() -> None:
    found = Table(
        "", (Column("op"), Column("reason")), (("conv", "its kernel is wider than that"),)
    )
    assert list(table(found, width=28)) == [
        "op    reason",
        "conv  its kernel is wider",
        "      than that",
    ]
    assert list(table(found)) == ["op    reason", "conv  its kernel is wider than that"]
    assert list(columns([("a", "b"), ("long", "22")], words=1)) == ["a      b", "long  22"]
