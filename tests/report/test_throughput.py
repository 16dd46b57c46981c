"""Tables of speeds, by hand."""

from __future__ import annotations

from typing import Any

from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.report.throughput import lines, profile

IDENTITY = {"backend": "cpu", "chip": "AMD EPYC", "cores": "2 cores"}
STATE = {"load": "0.31", "host": "vm"}


def speed(what: str, subject: str, seconds: float, tokens: int = 0, **more: Any) -> Speed:
    return Speed.model_validate(
        {"what": what, "subject": subject, "seconds": (seconds,), "tokens": tokens,
         "identity": IDENTITY, "state": STATE, **more}
    )  # fmt: skip


def judged(one: Speed, **facts: float) -> tuple[Speed, Verdict]:
    return one, Verdict("throughput", one.subject, "passed", "", facts=dict(facts))


DECODED = speed(
    "decode", "m", 0.05, 1,
    profile={"block": 0.04, "head": 0.006, "host": 0.004}, counts={"block": 30, "head": 4},
)  # fmt: skip


def test_models_first_then_what_lost_most() -> None:
    found = [
        judged(speed("load", "m:L00", 0.2), baseline_seconds=0.25, change=-0.2),
        judged(speed("call", "m:L00", 0.004, 4), baseline_tok_s=800.0, change=0.25),
        judged(speed("call", "m:L01", 0.002, 1), baseline_tok_s=1000.0, change=-0.5),
        judged(DECODED),
    ]
    assert list(lines(found))[:6] == [
        "cpu · AMD EPYC · 2 cores · load 0.31",
        "                         now    a token     baseline  change",
        "m      decoding  20.00 tok/s  50.000 ms            -       -",
        "m:L01  T=1         500 tok/s   2.000 ms  1,000 tok/s   -50 %",
        "m:L00  load           200 ms                  250 ms   -20 %",
        "m:L00  T=4       1,000 tok/s   1.000 ms    800 tok/s   +25 %",
    ]


def test_the_profile() -> None:
    loads = [speed("load", f"m:{i}", 0.1) for i in range(34)]
    assert list(profile(DECODED, [*loads, speed("load", "other:L00", 9.0)])) == [
        "m: 20.00 tok/s, of which a token's",
        "       shards  ms/token   each  share",
        "block      30    40.000  1.333  80.0%",
        "head        4     6.000  1.500  12.0%",
        "host              4.000          8.0%",
        "load and first prediction of 34 shards: 3.40 s, 100 ms each",
    ]


def test_loads_of_some_shards_are_no_model_s() -> None:
    assert "load" not in "".join(profile(DECODED, [speed("load", "m:L00", 0.1)]))


def test_many_are_counted_and_all_shown_where_asked() -> None:
    found = [judged(speed("call", f"m:L{i:02}", 0.001, 1)) for i in range(20)]
    assert list(lines(found))[-1] == "... and 8 more (-v shows all)"
    assert len(list(lines(found, everything=True))) == 22
