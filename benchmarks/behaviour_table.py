"""What compression does to shards alone and to the whole stack, with real packages.

    python -m benchmarks.behaviour_table [--cache DIR] [NAME ...]

Builds each scheme's 34 packages, gates them, and prints one line of a Markdown table: shards below
0.97 (of 30 blocks and 4 head slices) and the lowest cosine of a block, on captured and on gaussian
probes; then golden prompts. Position 0 of captured probes and prompts is left out. A scheme takes
some minutes on two cores where its packages are not in the cache, one where they are.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from benchmarks.compression_search import CANDIDATES, Case, gated, palettize

LEAST = 0.97
SCHEMES = {
    "fp16": CANDIDATES["fp16"],
    "int8 per channel": CANDIDATES["int8 per channel"],
    # What int6 with scale and offset per channel would hold; Core ML has no such integers.
    "6-bit even palette per channel": palettize('mode = "uniform"\nnbits = 6\ngroup_size = 1\n'),
    "int4 block 32": CANDIDATES["int4, blocks of 32"],
    "8-bit palette per tensor": palettize('nbits = 8\ngranularity = "per_tensor"\n'),
    "8-bit even palette per tensor": CANDIDATES["8-bit uniform, per tensor"],
    "4-bit palette, group 16": CANDIDATES["4-bit k-means, groups of 16"],
    "4-bit palette per tensor": CANDIDATES["4-bit k-means, per tensor"],
    "RMSNorm squaring in fp16": CANDIDATES["fp16"],
}
"""Palettes are k-means but where they are `even` (`mode = "uniform"`)."""

HEADER = (
    "| scheme | shards < 0.97, real inputs (min) | shards < 0.97, Gaussian (min) "
    "| centred cosine median / min | top-1 | mean KL (head alone) | perplexity "
    "| same greedy tokens of 10 |"
)


def line(name: str, cases: Sequence[Case]) -> str:
    """One scheme's row."""
    whole = next(case for case in cases if case["ane.gate"] == "behaviour")
    cosines = f"{_number(whole, 'centred_cosine.median')} / {_number(whole, 'centred_cosine.min')}"
    return (
        f"| {name} | {_below(cases, 'captured')} | {_below(cases, 'gaussian')} "
        f"| {cosines} | {float(whole['ane.top1']):.1%} "
        f"| {_number(whole, 'kl.mean')} ({_number(whole, 'head.kl.mean')}) "
        f"| {_number(whole, 'perplexity')} | {whole['ane.greedy.by_prompt']} |"
    )


def _below(cases: Sequence[Case], kind: str) -> str:
    """Blocks and head slices with a position below 0.97, and the lowest of a block."""
    fact = f"ane.cosine.{kind}.min"
    lowest = {case["ane.subject"]: float(case[fact]) for case in cases if fact in case}
    blocks = {shard: value for shard, value in lowest.items() if "head" not in shard}
    bad = sum(not value >= LEAST for value in blocks.values())
    heads = sum(not value >= LEAST for value in lowest.values()) - bad
    least = min(blocks.values(), key=lambda value: -2.0 if math.isnan(value) else value)
    return f"{bad}{f' + {heads} head' if heads else ''} ({least:.4f})"


def _number(case: Case, fact: str) -> str:
    return f"{float(case[f'ane.{fact}']):.4f}".replace("nan", "NaN")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCHEMES))
    parser.add_argument("--cache", help="cache folder; default is the user's")
    options = parser.parse_args()
    print(f"{HEADER}\n|{'---|' * HEADER.count(' | ')}---|")
    for name in options.names or SCHEMES:
        family = "naive_norm" if "RMSNorm" in name else "llama"
        cases = gated(SCHEMES[name], options.cache, family=family, only="fidelity or behaviour")
        print(line(name, cases), flush=True)


if __name__ == "__main__":
    main()
