"""How small, and how soon? `pytest-ane recommend` on the default model, without size budgets.

    python -m benchmarks.recommend [--cache DIR] [--minutes N]

Prints what the command prints, then minutes, peak memory, and what is saved against the best single
setting. The cache is a fresh one; with `--cache` a search that was stopped goes on.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.compression_search import ROOT, manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, help="cache folder; default is a fresh one")
    parser.add_argument("--minutes", default="18", help="as of the command (default: 18)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shards.toml")
        path.write_text(manifest('method = "none"\n'))
        cache = options.cache or Path(folder, "cache")
        start = time.perf_counter()
        said = recommend(path, cache, options.minutes)
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"\n{seconds / 60:.1f} minutes, peak {peak:.0f} MiB")
    if found := re.search(r"([\d.]+)% smaller than (.*) for all", said):
        print(f"{found[1]} % smaller than the best single setting, {found[2]} (target: 15 %)")


def recommend(path: Path, cache: Path, minutes: str) -> str:
    """Run the command, showing its lines as they come."""
    command = [sys.executable, "-m", "pytest_ane.cli", "recommend", "--ane-manifest", str(path),
               "--ane-cache", str(cache), "--minutes", minutes]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines)


if __name__ == "__main__":
    main()
