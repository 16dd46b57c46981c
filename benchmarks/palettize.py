"""Palettization of a full-size shard, from saved package to saved package: ours and coremltools'.

    python -m benchmarks.palettize gemma|zaya|FILE.mlpackage [--scale 0.1] [--only ours]

`gemma` is an FFN pack of Gemma-4-26B-A4B: a router and the banks of 16 experts of 2816 -> 704 ->
2816, 95 M weights; k-means, 4 bits, groups of 32. `zaya` is a mixture-of-experts shard of
ZAYA1-8B: 16 experts of 2048 -> 4096 -> 2048, 201 M weights; even steps, 4 bits, groups of 32.
A package of anyone's gets one 4-bit k-means palette for each weight; `--mode` changes that.
Weights are Gaussian, 3 % of them five times as wide; `--scale` takes a part of the experts. Each
way runs in a process of its own, by which its peak memory is known; imports are timed apart. Then
the two packages are compared: operations, tables and indices, every group's squared errors.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.make import compare_weights
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.make.palettize._palettes import find_palettes, palettize
from pytest_ane.make.palettize.choose import constants
from pytest_ane.manifest import Palettize
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.package import read_package
from pytest_ane.mlprogram.proto import set_name
from pytest_ane.mlprogram.records import Argument, MLModel, Value
from tests.mlprogram.packages import Program

GROUP, NBITS, ROUTER, EXPERTS = 32, 4, 128, 16
MODES = {"gemma": "kmeans", "zaya": "uniform"}


def gemma(shard: Shard, experts: int) -> None:
    """Router and banks; an expert's rows of the last bank see its own columns alone."""
    width, hidden = 2816, 704 * experts
    x = shard.input(width)
    shard.result(shard.conv("router", x, ROUTER, width))
    gate = shard.op("silu", "act", hidden, x=shard.conv("gate", x, hidden, width))
    inner = shard.op("mul", "inner", hidden, x=gate, y=shard.conv("up", x, hidden, width))
    shard.result(shard.conv("down", inner, width * experts, hidden // experts, groups=experts))


def zaya(shard: Shard, experts: int) -> None:
    """Experts one by one; the halves of the first product are not multiplied but summed."""
    width = 2048
    x = total = shard.input(width)
    for e in range(experts):
        inner = shard.op("silu", f"act_{e}", 2 * width, x=shard.conv(f"fc1_{e}", x, 4096, width))
        out = shard.conv(f"fc2_{e}", inner, width, width, groups=2)
        total = shard.op("add", f"sum_{e}", width, x=total, y=out)
    shard.result(total)


class Shard:
    """A program of convolutions on `[1, C, 1, 1]`, with random fp16 weights."""

    def __init__(self) -> None:
        self.random, self.program = np.random.default_rng(0), Program()

    def input(self, width: int) -> str:
        """The one input, `x`."""
        self.program.input("x", (1, width, 1, 1), "FLOAT16", kind=65552)
        return "x"

    def result(self, name: str) -> None:
        """Make a value one of the outputs."""
        self.program.output(name, 65552)

    def conv(self, name: str, x: str, rows: int, columns: int, groups: int = 1) -> str:
        """A 1x1 convolution with weights of its own."""
        weight = self.random.standard_normal((rows, columns, 1, 1), np.float32)
        weight[self.random.random(weight.shape, np.float32) < 0.03] *= 5
        weight /= np.sqrt(np.float32(columns))
        data = weight.astype(np.float16).tobytes()
        self.program.blob(f"{name}_weight", "FLOAT16", weight.shape, data)
        # What coremltools would add, so that both write the same program.
        parts = (
            ("pad_type", "valid", "STRING"), ("strides", [1, 1], "INT32"),
            ("pad", [0] * 4, "INT32"), ("dilations", [1, 1], "INT32"), ("groups", groups, "INT32"),
        )  # fmt: skip
        for key, value, kind in parts:
            self.program.const(f"{name}_{key}_0", value, kind)
        names = {key: f"{name}_{key}_0" for key, _, _ in parts}
        return self.op("conv", name, rows, x=x, weight=f"{name}_weight", **names)

    def op(self, kind: str, name: str, rows: int, **inputs: Any) -> str:
        """An operation; returns its result's name."""
        self.program.op(kind, name, "FLOAT16", (1, rows, 1, 1), **inputs)
        return name

    def save(self, folder: Path) -> Path:
        """Write `<folder>/model.mlpackage`, with names of operations as coremltools has them."""
        self.program.model.mlProgram.version = 1
        for operation in self.program.block.operations:
            set_name(operation.attributes["name"], operation.outputs[0].name)
        return self.program.save(folder)


def make(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write the uncompressed package."""
    if options.model not in MODES:
        shutil.copytree(options.model, folder / "model.mlpackage")
        return {}
    shard = Shard()
    experts = max(1, round(EXPERTS * options.scale))
    {"gemma": gemma, "zaya": zaya}[options.model](shard, experts)
    shard.save(folder)
    return {}


def ours(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Palettize with our own engine; loading what numba has compiled counts as an import."""
    start = time.perf_counter()
    find_palettes(np.zeros(64, np.float16), "kmeans", NBITS, groups=1, axis=0, threads=1)
    method = Palettize.model_validate(settings(options))
    small = Shard()
    small.result(small.conv("small", small.input(64), 64, 64))
    palettize(small.save(folder / "small"), folder / "small.mlpackage", {"small_weight": method})
    ready, before = time.perf_counter(), time.process_time()
    source = folder / "model.mlpackage"
    palettize(source, folder / "ours.mlpackage", dict.fromkeys(constants(source), method))
    return spent(start, ready, before)


def theirs(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Palettize with `coremltools.optimize.coreml.palettize_weights`."""
    start = time.perf_counter()
    ct = import_coremltools()
    ready, before = time.perf_counter(), time.process_time()
    cto = ct.optimize.coreml
    config = cto.OpPalettizerConfig(**settings(options), num_kmeans_workers=options.workers)
    with converter_notes():
        model = ct.models.MLModel(str(folder / "model.mlpackage"), skip_model_load=True)
        made = cto.palettize_weights(model, cto.OptimizationConfig(global_config=config))
        made.save(str(folder / "theirs.mlpackage"))
    return spent(start, ready, before)


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """What both are asked for."""
    mode = {"mode": options.mode or MODES.get(options.model, "kmeans"), "nbits": NBITS}
    if options.model not in MODES:
        return {**mode, "granularity": "per_tensor"}
    return {**mode, "granularity": "per_grouped_channel", "group_size": GROUP}


def spent(start: float, ready: float, before: float) -> dict[str, Any]:
    """Wall time, imports apart, and processor time, which other processes do not lengthen."""
    now, cpu = time.perf_counter(), time.process_time()
    return {"imports": ready - start, "seconds": now - ready, "cpu": cpu - before}


def compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Operations, bits and errors of the two packages."""
    names = ("model", "ours", "theirs")
    source, own, other = (read_package(folder / f"{name}.mlpackage") for name in names)
    assert isinstance(source, MLModel)
    assert isinstance(own, MLModel)
    assert isinstance(other, MLModel)
    structures = [
        [(op.op, op.outputs, sorted(op.inputs)) for op in model.program.walk()]
        for model in (own, other)
    ]
    files = [folder / f"{n}.mlpackage/Data/com.apple.CoreML/weights/weight.bin" for n in names]
    same = {
        "same operations": structures[0] == structures[1],
        "same weight.bin": files[1].read_bytes() == files[2].read_bytes(),
    }
    if options.model not in MODES:
        return same | {
            f"SSE, {name}": sum(d.sse for d in compare_weights(model, source).distortions)
            for name, model in {"ours": own, "theirs": other}.items()
        }
    mine, their, weights = (np.concatenate(list(errors(source, m))) for m in (own, other, source))
    return same | {
        "groups": len(mine),
        "groups worse": int((mine > their).sum()),
        "groups better": int((mine < their).sum()),
        "total SSE, ours / theirs": float(mine.sum() / their.sum()),
        "highest ratio of a group": float((mine / their).max()),
        "SNR, dB": float(10 * np.log10(weights.sum() / mine.sum())),
    }


def errors(source: MLModel, palettized: MLModel) -> Iterator[npt.NDArray[np.float64]]:
    """Sum of squared errors of each group; of the source itself, sum of squares."""
    found = {op.name: op for op in palettized.program.walk()}
    for op in source.program.walk():
        if not op.name.endswith("_weight"):
            continue
        dense = load(source, op.attributes["val"])
        rows = dense.reshape(dense.shape[0] // GROUP, -1)
        made = found.get(f"{op.name}_palettized")
        if made is None:
            yield np.array([np.square(r, dtype=np.float64).sum() for r in rows])
            continue
        lut, indices = (constant(palettized, made.inputs[k][0]) for k in ("lut", "indices"))
        tables = lut.reshape(len(rows), -1).astype(np.float64)
        picks = indices.reshape(rows.shape)
        yield np.array(
            [((t[i] - r) ** 2).sum() for t, i, r in zip(tables, picks, rows, strict=True)]
        )


def constant(model: MLModel, argument: Argument) -> npt.NDArray[Any]:
    """A constant that an operation holds itself."""
    assert isinstance(argument, Value)
    return load(model, argument)


STEPS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "make": make, "ours": ours, "theirs": theirs, "compare": compare,
}  # fmt: skip


def run(step: str, folder: str) -> dict[str, Any]:
    """A step in a process of its own; its results and its peak memory in MB."""
    command = [sys.executable, "-m", "benchmarks.palettize", *sys.argv[1:]]
    output = subprocess.check_output([*command, "--step", step, "--folder", folder], text=True)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="gemma, zaya, or an .mlpackage")
    parser.add_argument("--mode", choices=("kmeans", "uniform"))
    parser.add_argument("--scale", type=float, default=1.0, help="part of the experts")
    parser.add_argument("--only", choices=("ours", "theirs"))
    parser.add_argument("--workers", type=int, default=1, help="coremltools' num_kmeans_workers")
    parser.add_argument("--step", choices=sorted(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        results = STEPS[options.step](options.folder, options)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({**results, "peak": peak / (1e3 if sys.platform != "darwin" else 1e6)}))
        return
    with tempfile.TemporaryDirectory() as folder:
        run("make", folder)
        ways = {way: run(way, folder) for way in ("ours", "theirs") if options.only in (None, way)}
        print("| | seconds | of processors | peak MB | imports, seconds |\n|---|---|---|---|---|")
        for way, found in ways.items():
            print(
                "| {} | {seconds:.2f} | {cpu:.2f} | {peak:.0f} | {imports:.2f} |".format(
                    way, **found
                )
            )
        if options.only is None:
            ratio = ways["theirs"]["seconds"] / ways["ours"]["seconds"]
            print(f"\n{ratio:.1f} times as fast")
            for key, value in run("compare", folder).items():
                print(f"{key}: {value}")


if __name__ == "__main__":
    main()
