"""What our code adds to a prediction that is timed: benchmarks of shards that cost nothing.

    python -m benchmarks.fixture_overhead [--shards all] [--manifest shards.toml]

Every shard is run once for each shape of its inputs, and gives that answer again at once. What is
then timed is our own: of a call the closure around `predict`; of a decoded token, for each shard,
its inputs and outputs on the host, the streams between shards and the clock that splits them.
pytest-benchmark's own share is measured with a function that does nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

_TARGET = 100
"""Microseconds around one prediction."""


class Instant:
    """A runner that knows the answer already."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._known: dict[tuple[tuple[int, ...], ...], Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def predict(self, inputs: Any, state: Any = None) -> Any:
        """The answer to the first inputs of these shapes."""
        shapes = tuple(array.shape for array in inputs.values())
        if shapes not in self._known:
            self._known[shapes] = self._runner.predict(inputs, self._runner.make_state())
        return self._known[shapes]


def pytest_sessionstart(session: pytest.Session) -> None:
    """As a plugin of pytest: shards cost nothing."""
    from pytest_ane.backends import CpuBackend

    load = CpuBackend.load
    CpuBackend.load = lambda *given: Instant(load(*given))  # type: ignore


@pytest.mark.bench
def test_nothing(benchmark: Any) -> None:
    benchmark.pedantic(lambda: None, rounds=200, warmup_rounds=10)


def _timed(shards: str, manifest: str) -> dict[str, Any]:
    """Benchmarks by name."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.json")
        command = [sys.executable, "-m", "pytest", "-q", "-m", "bench", f"--ane-shards={shards}"]
        command += ["-p", "benchmarks.fixture_overhead", "-p", "no:cacheprovider", "-k", "not load"]
        command += [f"--ane-manifest={manifest}", f"--benchmark-json={file}", "gates", __file__]
        subprocess.run(command, check=True, stdout=sys.stderr)
        benchmarks = json.loads(file.read_text())["benchmarks"]
        return {benchmark["name"]: benchmark for benchmark in benchmarks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", default="all")
    parser.add_argument("--manifest", default="shards.toml")
    options = parser.parse_args()
    timed = _timed(options.shards, options.manifest)
    print("| around one prediction | microseconds, median | target |\n|---|---|---|")
    print(
        f"| pytest-benchmark alone | {1e6 * timed.pop('test_nothing')['stats']['median']:.2f} | |"
    )
    for what in ("T1", "Tmax"):
        rounds = [
            one["stats"]["median"] for name, one in timed.items() if name.endswith(f"-{what}]")
        ]
        print(f"| a call, {what}, the slowest shard | {1e6 * max(rounds):.2f} | {_TARGET} |")
    for one in timed.values():
        ane = one["extra_info"]["ane"]
        for part, spent in ane["profile"].items():
            count = ane["counts"].get(part, 0)
            what = f"{part}, each of {count}" if count else f"{part}, all of it"
            target = _TARGET if count else ""
            print(f"| a decoded token, {what} | {1e6 * spent / max(count, 1):.1f} | {target} |")


if __name__ == "__main__":
    main()
