"""Which compression is smallest and passes every gate? Builds and gates each candidate for real.

    python benchmarks/compression_search.py [--cache DIR] [NAME ...]

Prints a Markdown table: bytes of all shards, lowest cosines, behaviour, verdict. A candidate takes
one to three minutes on two cores where its shards are not cached yet.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree

Case: TypeAlias = Mapping[str, str]
"""Properties of one test, such as `ane.top1`."""
ROOT = Path(__file__).resolve().parents[1]
UNIFORM8 = 'mode = "uniform"\nnbits = 8\ngranularity = "per_grouped_channel"\ngroup_size = 32\n'


SHARP = "L2[78]"
"""Blocks that attend so sharply that their attention needs closer palettes."""


def palettize(text: str) -> str:
    """A palettization of all weights."""
    return f'method = "palettize"\n{text}'


def mixed(*weights: str) -> str:
    """8-bit uniform in groups of 32; these weights 6-bit k-means in groups of 16."""
    six = [f'{{ weights = "{w}*", mode = "kmeans", nbits = 6, group_size = 16 }}' for w in weights]
    fine = '{ weights = "[qkvo]_proj*", mode = "kmeans", group_size = 16 }'
    return (
        f"{palettize(UNIFORM8)}overrides = [{', '.join(six)}]\n"
        f'[models.smollm2.shard."{SHARP}".compression]\noverrides = [{", ".join([*six, fine])}]\n'
    )


FFN = ("gate_proj", "up_proj")
CANDIDATES = {
    "fp16": 'method = "none"\n',
    "int8 per channel": 'method = "linear"\n',
    "int4, blocks of 32": 'method = "linear"\ndtype = "int4"\ngranularity = "per_block"\n',
    "4-bit k-means, per tensor": palettize('nbits = 4\ngranularity = "per_tensor"\n'),
    "4-bit k-means, groups of 16": palettize("nbits = 4\ngroup_size = 16\n"),
    "6-bit uniform, groups of 16": palettize('mode = "uniform"\nnbits = 6\ngroup_size = 16\n'),
    "6-bit k-means, groups of 16": palettize("nbits = 6\ngroup_size = 16\n"),
    "8-bit uniform, per tensor": palettize(
        'mode = "uniform"\nnbits = 8\ngranularity = "per_tensor"\n'
    ),
    "8-bit uniform, groups of 32": palettize(UNIFORM8),
    "mixed: gate, up": mixed(*FFN),
    "mixed: gate, up, v": mixed(*FFN, "v_proj"),
    "mixed: gate, up, o": mixed(*FFN, "o_proj"),
    "mixed: gate, up, o, v": mixed(*FFN, "o_proj", "v_proj"),
    "mixed: gate, up, o, v, k": mixed(*FFN, "o_proj", "v_proj", "k_proj"),
    "mixed: gate, up, o, v, q, k": mixed(*FFN, "o_proj", "v_proj", "q_proj", "k_proj"),
    "mixed: gate, up, down": mixed(*FFN, "down_proj"),
    "mixed: gate, up, head": mixed(*FFN, "head_weight"),
}
"""`mixed: ...` names the weights with 6 bits; the rest has 8."""


def manifest(compression: str) -> str:
    """The repository's manifest with another compression, `unit-norm`, and no size budgets."""
    text = (ROOT / "shards.toml").read_text()
    text = text.replace('kinds = ["gaussian",', 'kinds = ["gaussian", "unit-norm",')
    start = text.index("[models.smollm2.compression]")
    end = text.index("[models.smollm2.probes]")
    # The manifest's own compression, overrides of single shards included, ends where probes begin.
    text = text[:start] + f"[models.smollm2.compression]\n{compression}\n" + text[end:]
    return "".join(part for part in _tables(text) if ".policy.compression]" not in part)


def _tables(text: str) -> Iterator[str]:
    """The text cut before every table header."""
    part = ""
    for line in text.splitlines(keepends=True):
        if line.startswith("[") and part:
            yield part
            part = ""
        part += line
    yield part


def gated(
    compression: str, cache: str | None, *, family: str = "llama", only: str = ""
) -> list[Case]:
    """The facts of the gates of the default model with another compression.

    They run in a process of their own. A family other than `llama` is a module of this folder;
    `only` is an expression for pytest's `-k`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, junit = Path(folder, "shards.toml"), Path(folder, "junit.xml")
        path.write_text(manifest(compression).replace('family = "llama"', f'family = "{family}"'))
        if family != "llama":
            shutil.copy(Path(__file__).with_name(f"{family}.py"), folder)
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gate", "-k", only,
                   "--ane-shards=all",
                   f"--ane-manifest={path}", f"--junitxml={junit}"]  # fmt: skip
        command += [f"--ane-cache={cache}"] if cache else []
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not junit.is_file():
            raise SystemExit(f"no gate ran\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return facts(junit)


def facts(junit: Path) -> list[Case]:
    """Properties of every test of a JUnit file, and whether it failed."""
    return [
        {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        | {"failed": str(case.find("failure") is not None or case.find("error") is not None)}
        for case in ElementTree.parse(junit).getroot().iter("testcase")
    ]


def row(name: str, cases: Sequence[Case]) -> str:
    """One row of the table."""

    def lowest(fact: str) -> float:
        return min(float(case[fact]) for case in cases if fact in case)

    size = sum(
        float(case["ane.size_bytes"]) for case in cases if case.get("ane.gate") == "compression"
    )
    failed = [case.get("ane.gate", "?") for case in cases if case["failed"] == "True"]
    counts = ", ".join(f"{failed.count(gate)} {gate}" for gate in dict.fromkeys(failed))
    whole = next(case for case in cases if case.get("ane.gate") == "behaviour")
    return (
        f"| {name} | {size / 1e6:.1f} | {lowest('ane.cosine.captured.min'):.4f} "
        f"| {lowest('ane.cosine.gaussian.min'):.4f} | {lowest('ane.cosine.unit-norm.min'):.4f} "
        f"| {float(whole['ane.top1']):.1%} | {float(whole['ane.kl.mean']):.4f} "
        f"| {float(whole['ane.centred_cosine.min']):.4f} | {whole['ane.greedy.agreed']} "
        f"| {'red: ' + counts if counts else 'green'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CANDIDATES))
    parser.add_argument("--cache", help="cache folder; default is the user's")
    options = parser.parse_args()
    print(
        "| compression | MB | captured | gaussian | unit-norm | top-1 | KL | centred | greedy | |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in options.names or CANDIDATES:
        print(row(name, gated(CANDIDATES[name], options.cache)), flush=True)


if __name__ == "__main__":
    main()
