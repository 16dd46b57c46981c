"""Tables of speeds, load times and noise, by hand."""

from __future__ import annotations

from typing import Any

from pytest_ane.gates.throughput.baseline import Calibration, Noise
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.verdict import Figure, Verdict
from pytest_ane.report.throughput import lines, loads, noise, profile

IDENTITY = {"backend": "cpu", "chip": "AMD EPYC", "cores": "2 cores"}
STATE = {"load": "0.31", "host": "vm", "power": "AC"}


def speed(what: str, subject: str, seconds: float, tokens: int = 0, **more: Any) -> Speed:
    return Speed.model_validate(
        {"what": what, "subject": subject, "seconds": (seconds,), "tokens": tokens,
         "identity": IDENTITY, "state": STATE, **more}
    )  # fmt: skip


def judged(one: Speed, **facts: float) -> tuple[Speed, Verdict]:
    return one, Verdict("throughput", one.subject, tuple(Figure(*fact) for fact in facts.items()))


DECODED = speed(
    "decode", "m", 0.05, 1,
    profile={"block": 0.04, "head": 0.006, "host": 0.004}, counts={"block": 30, "head": 4},
)  # fmt: skip


def test_models_first_then_the_greatest_loss() -> None:
    call = speed("call", "m:L01", 0.002, 1)
    verdicts = [
        judged(speed("load", "m:L00", 0.2), baseline_seconds=0.25, change=-0.2),
        judged(speed("call", "m:L00", 0.004, 4), baseline_tok_s=800.0, change=0.25),
        judged(call, baseline_tok_s=1000.0, change=-0.5, control_change=0.012),
        judged(DECODED),
    ]
    assert list(lines(verdicts))[:6] == [
        "cpu · AMD EPYC · 2 cores · power AC · load 0.31",
        "                         now    a token     baseline  change  control",
        "m      decoding  20.00 tok/s  50.000 ms            -       -        -",
        "m:L01  T=1         500 tok/s   2.000 ms  1,000 tok/s   -50 %   +1.2 %",
        "m:L00  load           200 ms                  250 ms   -20 %        -",
        "m:L00  T=4       1,000 tok/s   1.000 ms    800 tok/s   +25 %        -",
    ]
    verdicts = [judged(speed("call", f"m:L{i:02}", 0.001, 1)) for i in range(20)]
    assert list(lines(verdicts))[-1] == "... and 8 more (-v shows all)"
    assert len(list(lines(verdicts, everything=True))) == 22


def test_the_profile_and_loads_by_kind() -> None:
    assert list(profile(DECODED)) == [
        "m: 20.00 tok/s, of which a token's",
        "       shards  ms/token   each  share",
        "block      30    40.000  1.333  80.0%",
        "head        4     6.000  1.500  12.0%",
        "host              4.000          8.0%",
    ]
    # As 80 shards of the published runs: 0.7 to 1.0 s for mixtures, 0.03 to 0.06 s others.
    timed = [speed("load", f"m:L{i}", s, kind="mixture") for i, s in enumerate((0.7, 0.8, 1.0))]
    timed += [speed("load", "m:L9", 0.04, kind="attention"), speed("load", "own:x", 2.0), DECODED]
    assert list(loads(timed)) == [
        "",
        "load and first prediction",
        "             shards     all    each   least    most",
        "m attention       1   40 ms   40 ms   40 ms   40 ms",
        "m mixture         3  2.50 s  800 ms  700 ms  1.00 s",
        "own               1  2.00 s  2.00 s  2.00 s  2.00 s",
    ]
    assert list(loads([DECODED])) == []


def noise_of(*medians: float, subject: str = "m:L01", what: str = "load", tokens: int = 0) -> Noise:
    return Noise.model_validate(
        {"what": what, "subject": subject, "tokens": tokens, "medians": medians}
    )


def test_the_noisiest_comes_first_and_few_runs_leave_sigma_uncertain() -> None:
    quiet, loud = noise_of(*[1.0, 1.01] * 5), noise_of(*[1.0, 1.2] * 5, subject="m:L02")
    call = noise_of(*[1.0, 1.001] * 5, what="call", tokens=4)
    assert list(noise(Calibration(identity=IDENTITY, noises=(quiet, loud, call)))) == [
        "",
        "cpu, AMD EPYC, 2 cores",
        "benchmark   median     sigma  2.8 sigma  runs",
        "m:L02 load  1.10 s    9.58 %     26.8 %    10",
        "m:L01 load  1.00 s   0.524 %     1.47 %    10",
        "m:L01 T=4   1.00 s  0.0527 %    0.147 %    10",
    ]
    *_, last = noise(Calibration(identity=IDENTITY, noises=(noise_of(1.0, 1.0, 1.1, 0.9, 1.0),)))
    assert last == "sigma of 5 runs is itself known to 35.4 %; see --runs"
