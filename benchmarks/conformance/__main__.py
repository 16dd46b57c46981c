"""Run coremltools' own tests against the executor.

python -m benchmarks.conformance            # everything, and write docs/reference/conformance.md
python -m benchmarks.conformance --every 12 # a slice with its controls; red below the targets
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.conformance.records import Item, Score, read
from benchmarks.conformance.report import applicable, page, unexplained

ROOT = Path(__file__).parents[2]
OPERATIONS = "converters/mil/mil/ops/tests"
OTHERS = {
    "ML programs": "test/ml_program",
    "compression": "test/optimize/coreml",
    "passes": "converters/mil/mil/passes/tests",
}
CONTROL_EVERY = 6
LEAST_PASSED, LEAST_CLOSE, MOST_SCALED, MOST_ZERO = 0.999, 0.998, 0.15, 0.35


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="run every n-th item, write no page")
    parser.add_argument("--records", type=Path, help="keep records here, and use those there are")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(options.workers, options.records or Path(folder))
        if options.every > 1:
            controls = _control(runner, options.every)
            return _verdict(controls["as computed"], controls, whole=False)
        runs, controls = _runs(runner), _control(runner, CONTROL_EVERY)
    (ROOT / "docs/reference/conformance.md").write_text(page(runs, controls), encoding="utf-8")
    return _verdict(runs["operations, fp16"], controls, whole=True)


def _runs(runner: Runner) -> dict[str, list[Item]]:
    twins = runner.run(
        "twins", OPERATIONS, INCLUDE_MIL_FP32_UNIT_TESTS="1",
        ANE_CONFORMANCE_ONLY="precision='fp32'",
    )  # fmt: skip
    return {
        "operations, fp16": runner.run("operations", OPERATIONS),
        "operations, fp32 twins": [i for i in twins if not i.half],
        "operations, fp32 twins with fp16 values": [i for i in twins if i.half],
        **{name: runner.run(name, folder) for name, folder in OTHERS.items()},
    }


def _control(runner: Runner, every: int) -> dict[str, list[Item]]:
    """The same slice with right outputs, with outputs times 1.05, and with zeros."""
    return {
        name: runner.run(
            name, OPERATIONS, ANE_CONFORMANCE_EVERY=str(every), ANE_CONFORMANCE_FACTOR=by
        )
        for name, by in (("as computed", "1"), ("times 1.05", "1.05"), ("times 0", "0"))
    }


@dataclass(frozen=True)
class Runner:
    """Runs folders of coremltools' tests; a run that is recorded is not repeated."""

    workers: int
    records: Path

    def run(self, name: str, folder: str, **environment: str) -> list[Item]:
        """What was recorded of a folder's tests."""
        records = self.records / name.replace(" ", "-")
        if not records.exists():
            print(f"{name}: {folder}", flush=True)
            self._start(folder, {**environment, "ANE_CONFORMANCE_OUT": str(records)})
        return read(records)

    def _start(self, folder: str, environment: dict[str, str]) -> None:
        spec = find_spec("coremltools")
        assert spec is not None
        assert spec.submodule_search_locations
        site = Path(spec.submodule_search_locations[0])
        command = [
            sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(site),
            "-p", "pytest_ane.mac.predict", "-p", "benchmarks.conformance.plugin",
            "-p", "no:cacheprovider", "-p", "no:ane", "-p", "no:benchmark",
            "-q", "--tb=no", "-W", "ignore", "-n", str(self.workers), str(site / folder),
        ]  # fmt: skip
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        paths = {"PYMIL_TEST_TARGETS": "mlprogram", "PYTHONPATH": str(ROOT)}
        subprocess.run(
            command, env={**os.environ, **threads, **paths, **environment}, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def _verdict(items: list[Item], controls: dict[str, list[Item]], *, whole: bool) -> int:
    """Print the scores; 1 where a target is missed or anything is unexplained.

    The targets are shares of all items; in a slice one explained item would weigh too much.
    """
    score = Score.of(applicable(items))
    scaled, zero = Score.of(controls["times 1.05"]), Score.of(controls["times 0"])
    checks = {
        f"passed {score.pass_share:.3%} of {score.compared:,}": (
            score.pass_share >= LEAST_PASSED or not whole
        ),
        f"close {score.close_share:.3%}": score.close_share >= LEAST_CLOSE or not whole,
        f"times 1.05 close {scaled.close_share:.1%}": scaled.close_share < MOST_SCALED,
        f"times 0 passed {zero.pass_share:.1%}": zero.pass_share < MOST_ZERO,
    }
    for text, good in checks.items():
        print(f"{'ok    ' if good else 'FAILED'} {text}")
    lost = unexplained(items)
    for item in lost:
        print(f"FAILED {item.item}\n       {item.why}")
    return 0 if all(checks.values()) and not lost and score.compared else 1


if __name__ == "__main__":
    sys.exit(main())
