"""Exact sums in the ANE's accumulator, as ratios to float32 products by BLAS in one run.

    python -m benchmarks.ane_kernel [--positions 1 8 64]

One thread. Weights are held in fp16, as a session holds them; each time is the least of several,
as others use the machine too. Memory is what a product allocates beside weight and inputs.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from pytest_ane.mlprogram.executor.ane.accumulator import Weight, sums

SHAPES = ((1536, 576), (576, 1536), (8192, 2048))
REPEATS = 15


def least(work: Callable[[], object]) -> float:
    """Seconds of the quickest of some runs."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def allocated(work: Callable[[], object]) -> float:
    """Peak of what a call allocates, MiB."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def measure(rows: int, width: int, positions: int) -> str:
    """A row of the table."""
    rng = np.random.default_rng(0)
    half = (rng.standard_normal((rows, width), np.float32) * 0.05).astype(np.float16)
    vectors = rng.standard_normal((1, positions, width)).astype(np.float16).astype(np.float32)
    dense, columns = half.astype(np.float32), np.ascontiguousarray(vectors[0].T)
    weight = Weight.of(half[None])

    def exact() -> object:
        return sums(weight, vectors)

    def plain() -> object:
        return dense @ columns

    seconds, blas = least(exact), least(plain)
    count = rows * width * positions / 1e9
    return (
        f"| {rows} x {width} | {positions} | {count / seconds:.1f} | {count / blas:.1f} "
        f"| {seconds / blas:.2f} | {allocated(exact):.1f} | {half.nbytes / 2**20:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--positions", type=int, nargs="+", default=[1, 8, 64])
    options = parser.parse_args()
    print(
        "| weight | positions | G products/s | BLAS, float32 | times as long | MiB | weight, MiB |"
    )
    print("|---|---|---|---|---|---|---|")
    with threadpool_limits(1):
        for rows, width in SHAPES:
            for positions in options.positions:
                print(measure(rows, width, positions), flush=True)


if __name__ == "__main__":
    main()
