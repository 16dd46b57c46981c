"""What drift and bisect cost on a whole model, as it is and with one or two shards spoilt.

    python -m benchmarks.drift [--spoil 0 1 2] [--seed 1]

Builds what is missing first, which is not measured. Which shards are spoilt, by a 2-bit palette
per tensor, is drawn by the seed.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from pytest_ane.project import process as threads

ROOT = Path(__file__).resolve().parents[1]
SPOILT = """
[models.smollm2.shard.{shard}.compression]
method = "palettize"
mode = "kmeans"
nbits = 2
granularity = "per_tensor"
overrides = []
"""
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spoil", type=int, nargs="+", default=[0, 1, 2], help="how many shards")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ane-cache", type=Path)
    asked = parser.parse_args()
    threads.choose()
    for count in asked.spoil:
        blocks = [f"L{i:02d}" for i in range(30) if i not in (27, 28)]  # These have own settings.
        guilty = sorted(random.Random(asked.seed).sample(blocks, count))
        report(guilty, asked.ane_cache)


def report(guilty: list[str], cache: Path | None) -> None:
    """Open, drift, bisect: seconds of each, and what they said."""
    from pytest_ane.gates.verdict import Verdict
    from pytest_ane.tools.bisect import bisect, most_evaluations
    from pytest_ane.tools.bisect import sentence as found_sentence
    from pytest_ane.tools.drift import find_causes, measure_drift, open_stack, sentence

    with TemporaryDirectory() as name:
        manifest = Path(name, "shards.toml")
        text = (ROOT / "shards.toml").read_text()
        manifest.write_text(text + "".join(SPOILT.format(shard=shard) for shard in guilty))
        with open_stack(manifest, None, cache) as stack:
            print(f"spoilt: {', '.join(guilty) or 'none'}")
            timed("open", lambda: (stack.chain, stack.reference, stack.golden))
            drift = timed("drift", lambda: measure_drift(stack))
            print(f"  {sentence(find_causes(drift, stack.policy, stack.model))}")
            found = timed("bisect", lambda: bisect(stack))
            last = Verdict("behaviour", stack.model)
            print(f"  {found_sentence(found, stack.model, len(stack.artifacts), last)}")
            bound = most_evaluations(len(stack.artifacts), max(len(guilty), 1))
            print(f"  {found.evaluations} evaluations, at most {bound}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  peak memory {peak:.0f} MiB")


def timed(label: str, work: Callable[[], T]) -> T:
    """Run and print seconds of wall time and of this process."""
    start, own = time.perf_counter(), time.process_time()
    result = work()
    wall, used = time.perf_counter() - start, time.process_time() - own
    print(f"  {label:<8} {wall:7.1f} s ({used:.1f} s of processor time)", flush=True)
    return result


if __name__ == "__main__":
    main()
