"""What the check of a cache entry costs: with remembered digests, and in full.

$ python -m benchmarks.cache_check

For entries of some sizes: seconds to read their files once, to check them with every digest
remembered, and to check them in full (`--ane-rehash`). Then a small model's warm gates in processes
of their own: how much of the run the checks take, with digests remembered and in full.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pytest_ane.make.cache import Cache
from pytest_ane.make.shared_store import damage
from pytest_ane.mlprogram.digests import remembered
from tests.plugin.projects import LLAMA, make_llama

SIZES = (10**5, 10**6, 10**7, 10**8)
REPEAT = 5
PLUGIN = """
import json, time
from pytest_ane.make import cache

def timed(entry, damage=cache.damage, spent=[0.0, 0]):
    start = time.perf_counter()
    result = damage(entry)
    spent[0] += time.perf_counter() - start
    spent[1] += 1
    open("spent.json", "w").write(json.dumps(spent))
    return result

cache.damage = timed
"""


def seconds(call: Callable[[], object]) -> float:
    """Median wall time of a call."""
    times = []
    for _ in range(REPEAT):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


def of_size(cache: Cache, size: int) -> tuple[float, float, float]:
    """Seconds to read an entry of three files, to check it, and to check it in full."""

    def make(folder: Path) -> None:
        for name in ("weight.bin", "model.mlmodel", "build.json"):
            (folder / name).write_bytes(os.urandom(size if name == "weight.bin" else 4000))

    entry = cache.get_or_make("artifacts", f"{size:064x}", make)
    files = list(entry.iterdir())
    digests = cache.root / "digests"
    time.sleep(2.1)  # A file that has just been written is not remembered.

    def full() -> None:
        with remembered(digests, rehash=True):
            assert not damage(entry)

    full()
    with remembered(digests):
        check = seconds(lambda: damage(entry))
    return seconds(lambda: [file.read_bytes() for file in files]), check, seconds(full)


def of_gates(folder: Path, *options: str) -> tuple[float, float, int]:
    """Seconds of a warm run of the gates, seconds of its checks, and their number."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "timed",
        "-q",
        "--ane-shards=all",
        "-m",
        "gate",
    ]
    env = {**os.environ, "PYTHONPATH": f"{folder}:{Path.cwd()}"}
    start = time.perf_counter()
    subprocess.run(
        [*command, "--ane-cache=cache", *options], cwd=folder, check=True, env=env,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    run = time.perf_counter() - start
    spent, count = json.loads((folder / "spent.json").read_text())
    return run, spent, count


def main() -> None:
    """Print both tables."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of an entry")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("| entry | read once | check, remembered | check, in full |")
        for size in filter(options.largest.__ge__, SIZES):
            read, check, full = of_size(Cache(folder / "cache"), size)
            print(
                f"| {size / 1e6:g} MB | {read * 1e3:.2f} ms | {check * 1e3:.2f} ms, "
                f"{check / read:.1%} | {full * 1e3:.2f} ms, {full / read:.1f}x |"
            )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "timed.py").write_text(PLUGIN)
        source = make_llama(folder / "mini.gguf")
        (folder / "shards.toml").write_text(LLAMA.format(source=source))
        (folder / "spent.json").write_text("[0, 0]")  # Nothing is checked while it is built.
        of_gates(folder)
        time.sleep(2.1)
        of_gates(folder)
        for more in ((), ("--ane-rehash",)):
            run, spent, count = min(of_gates(folder, *more) for _ in range(3))
            checks = f"{count} checks {spent * 1e3:.1f} ms, {spent / run:.2%}"
            print(f"warm gates {' '.join(more)}: {run:.2f} s, {checks}")


if __name__ == "__main__":
    main()
