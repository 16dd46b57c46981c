"""Run coremltools' own tests against the executor.

python -m benchmarks.conformance            # everything, and write docs/conformance.md
python -m benchmarks.conformance --every 12 # a slice with its controls; red below the targets
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
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
    options = parser.parse_args()
    if options.every > 1:
        return _slice(options.every, options.workers)
    runs = {"operations, fp16": run(OPERATIONS, options.workers)}
    twins = run(
        OPERATIONS, options.workers, INCLUDE_MIL_FP32_UNIT_TESTS="1",
        ANE_CONFORMANCE_ONLY="precision='fp32'",
    )  # fmt: skip
    runs["operations, fp32 twins"] = [i for i in twins if not i.half]
    runs["operations, fp32 twins with fp16 values"] = [i for i in twins if i.half]
    for name, folder in OTHERS.items():
        runs[name] = run(folder, options.workers)
    controls = _control(CONTROL_EVERY, options.workers)
    (ROOT / "docs/conformance.md").write_text(page(runs, controls), encoding="utf-8")
    return _verdict(runs["operations, fp16"], controls, whole=True)


def run(folder: str, workers: int, **environment: str) -> list[Item]:
    """Run a folder of coremltools' tests; what was recorded."""
    spec = find_spec("coremltools")
    assert spec is not None
    assert spec.submodule_search_locations
    site = Path(spec.submodule_search_locations[0])
    with tempfile.TemporaryDirectory() as records:
        command = [
            sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(site),
            "-p", "pytest_ane.predict", "-p", "benchmarks.conformance.plugin",
            "-p", "no:cacheprovider", "-p", "no:ane", "-p", "no:benchmark",
            "-q", "--tb=no", "-W", "ignore", "-n", str(workers),
            str(site / folder),
        ]  # fmt: skip
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        settings = {
            "PYMIL_TEST_TARGETS": "mlprogram",
            "ANE_CONFORMANCE_OUT": records,
            "PYTHONPATH": str(ROOT),
        }
        merged = {**os.environ, **threads, **settings, **environment}
        print(f"{folder} {environment or ''}", flush=True)
        subprocess.run(command, env=merged, check=False, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)  # fmt: skip
        return read(Path(records))


def _control(every: int, workers: int) -> dict[str, list[Item]]:
    """The same slice with right outputs, with outputs times 1.05, and with zeros."""
    return {
        name: run(OPERATIONS, workers, ANE_CONFORMANCE_EVERY=str(every), ANE_CONFORMANCE_FACTOR=by)
        for name, by in (("as computed", "1"), ("times 1.05", "1.05"), ("times 0", "0"))
    }


def _slice(every: int, workers: int) -> int:
    controls = _control(every, workers)
    return _verdict(controls["as computed"], controls, whole=False)


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
