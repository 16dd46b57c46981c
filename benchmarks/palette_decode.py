"""Decoding palettes: against coremltools' decoder, and against merely writing as many values.

    python benchmarks/palette_decode.py [--bits 4] [--group-size 16] [--matrices 12]

By default 12 matrices of 8,192 x 2,048, 201 M weights, with a table of 16 fp16 values for every 16
rows. Each is decoded to float32 on its own, by turns with the others' way; times are sums over the
matrices. Memory of a fresh array is mapped while it is written, which can take longer than all the
rest, so both are timed: into fresh arrays, and into one array used again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.executor.weights import Packed, decode

ROWS, COLUMNS = 8192, 2048


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The least of some times, as others use the machine too."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def coremltools_decoders() -> tuple[Callable[..., npt.NDArray[np.uint8]], Callable[..., Any]]:
    """Its numpy functions that unpack indices and look them up, as its own passes use them."""
    import_coremltools()
    with converter_notes():
        from coremltools.optimize import _utils
    return _utils.restore_elements_from_packed_bits, _utils.lut_to_dense


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", type=int, default=4, choices=(1, 2, 3, 4, 6, 8))
    parser.add_argument("--group-size", type=int, default=16, help="rows that share a table")
    parser.add_argument("--matrices", type=int, default=12)
    options = parser.parse_args()
    bits, groups = options.bits, ROWS // options.group_size
    generator = np.random.default_rng(0)
    tables = generator.standard_normal((groups, 1 << bits)).astype(np.float16)
    wide = tables.astype(np.float32)
    unpack, look_up = coremltools_decoders()
    reused = np.empty((ROWS, COLUMNS), np.float32)
    totals: dict[str, float] = {}
    for _ in range(options.matrices):
        data = generator.integers(0, 256, ROWS * COLUMNS * bits // 8, dtype=np.uint8)
        packed = Packed(data, bits, (ROWS, COLUMNS))
        unpacked = unpack(data, bits, packed.size).reshape(packed.shape)
        lut = tables.reshape(groups, 1, -1, 1)
        expected = look_up(unpacked, lut).astype(np.float32)
        assert np.array_equal(decode(packed, wide), expected)
        ways: dict[str, tuple[Callable[[], object], int]] = {
            "decode, fresh": (partial(decode, packed, wide), 3),
            "fill, fresh": (lambda: np.empty((ROWS, COLUMNS), np.float32).fill(1), 3),
            "decode, reused": (partial(decode, packed, wide, out=reused), 3),
            "fill, reused": (lambda: reused.fill(1), 3),
            "coremltools' look-up": (partial(look_up, unpacked, lut), 1),
            "coremltools' unpacking": (partial(unpack, data, bits, packed.size), 1),
        }
        for name, (work, repeats) in ways.items():
            totals[name] = totals.get(name, 0) + seconds(work, repeats)
    count = options.matrices * ROWS * COLUMNS
    print(f"{count:,} weights, {bits} bits, a table for {options.group_size} rows")
    print("| | seconds | to decoding, fresh |\n|---|---|---|")
    for name, total in totals.items():
        print(f"| {name} | {total:.3f} | {total / totals['decode, fresh']:.2f} |")


if __name__ == "__main__":
    main()
