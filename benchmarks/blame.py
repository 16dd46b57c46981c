"""What it costs to find which weight is to blame for a shard's error.

    python -m benchmarks.blame [--cache DIR] [MANIFEST SHARD]

By default SmolLM2's L01, and ZAYA1-8B's L01 at full size with seeded weights (201 M). Packages and
references are made first, or taken from the cache; each shard is then explained in a process of its
own, on one thread. Times leave imports out; memory is the process's peak, mapped files included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHARDS = (("shards.toml", "L01"), ("examples/zaya1-8b.toml", "L01"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", metavar="MANIFEST SHARD")
    parser.add_argument("--cache", type=Path, help="keeps and reuses what is built")
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        manifest, shard = options.what
        print(json.dumps(explained(manifest, shard, options.cache)))
        return
    asked = [tuple(options.what)] if options.what else SHARDS
    with tempfile.TemporaryDirectory() as temporary:
        cache = options.cache or Path(temporary)
        for manifest, shard in asked:
            run(manifest, shard, cache)  # Builds and records, if need be.
            found = run(manifest, shard, cache)
            print(f"| {manifest} {shard} | " + " | ".join(f"{k} {v}" for k, v in found.items()))


def run(manifest: str, shard: str, cache: Path) -> dict[str, Any]:
    """One shard in a process of its own."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.blame", "--step", "--cache", str(cache)]
    done = subprocess.run(
        [*command, manifest, shard],
        cwd=ROOT, env=os.environ | threads, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def explained(manifest: str, name: str, folder: Path) -> dict[str, Any]:
    """Seconds of wall and of processor time, and memory."""
    from pytest_ane.manifest import select
    from pytest_ane.project.project import read_project
    from pytest_ane.tools.blame import blame_shard

    project = read_project(ROOT / manifest, folder, backend_name="cpu")
    (shard,) = select(project.manifest, name)
    project.open_shard(shard).cases()  # Packages and references are made before the clock runs.
    start, worked = time.perf_counter(), time.process_time()
    blame = blame_shard(project, shard)
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "of the processor": round(time.process_time() - worked, 2),
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "weights": len(blame.weights),
        "mends": sum(c.remedy is not None for c in blame.weights),
    }


if __name__ == "__main__":
    main()
