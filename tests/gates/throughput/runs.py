"""Stored runs, as pytest-benchmark writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_benchmark.logger import Logger
from pytest_benchmark.storage.file import FileStorage

from pytest_ane.gates.throughput.speed import KEY, Speed

HERE = {"chip": "Apple M4 Max", "system": "macOS 26.1", "backend": "coreml", "units": "CPU_AND_NE"}
THERE = HERE | {"chip": "Apple M1"}
MACHINE = "Darwin-CPython-3.12-64bit"


def speed(
    *seconds: float, what: str = "decode", subject: str = "smollm2", tokens: int = 40,
    identity: dict[str, str] = HERE, **more: Any,
) -> Speed:  # fmt: skip
    """What was measured; 40 tokens in 4 seconds unless said."""
    return Speed.model_validate(
        {"what": what, "subject": subject, "tokens": tokens, "seconds": seconds or (4.0,)}
        | {"identity": identity, **more}
    )


def run(*speeds: Speed, when: str = "2026-11-20T10:00:00+00:00") -> dict[str, Any]:
    """The JSON of a run, with a benchmark that is none of ours."""
    benchmarks = [_benchmark("test_own", 1e-3, {})]
    benchmarks += [
        _benchmark(f"{one.what}[{one.subject}-{at}]", one.median, {KEY: one.to_json()})
        for at, one in enumerate(speeds)
    ]
    info = {"node": "mac", "cpu": {}}
    return {"machine_info": info, "benchmarks": benchmarks, "datetime": when, "version": "5.3.1"}


def _benchmark(name: str, median: float, extra: dict[str, Any]) -> dict[str, Any]:
    keys = ("min", "max", "mean", "median", "q1", "q3", "ld15iqr", "hd15iqr", "total")
    stats = dict.fromkeys(keys, median) | {"stddev": 0, "iqr": 0.0, "outliers": "0;0"}
    stats |= {"rounds": 1, "iterations": 1, "ops": 1 / median, "stddev_outliers": 0}
    head = {"group": None, "name": name, "fullname": f"gates/test_throughput.py::{name}"}
    return head | {"params": None, "param": None, "extra_info": extra, "stats": stats}


def storage(folder: Path) -> FileStorage:
    """pytest-benchmark's own, silent."""
    return FileStorage(folder / ".benchmarks", Logger(Logger.QUIET), MACHINE)


def store(folder: Path, number: int, *speeds: Speed, machine: str = MACHINE, **more: Any) -> Path:
    """Store a run under a number."""
    file = folder / ".benchmarks" / machine / f"{number:04}_run.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(run(*speeds, **more)))
    return file


def slower(then: Speed, share: float) -> Speed:
    """The same with tok/s less by a share."""
    seconds: Sequence[float] = [s / (1 - share) for s in then.seconds]
    return then.model_copy(update={"seconds": tuple(seconds)})
