"""What it costs to gate a full-size ZAYA1-8B mixture shard: build, and fidelity measurement.

    python -m benchmarks.zaya_gate [--folder DIR] [--threads N] [--ours]

Layer 1 with seeded weights (201 M). The build is timed from nothing to the saved 4-bit package. The
measurement runs 8 probes at T = 1 and 8 at T = 4 through the package and the float32 reference, in
a process of its own, from a checkpoint on disk; beside it the same with coremltools and torch alone
(`decompress_weights`, weights into an eager module, and the checkpoint's into another). Times leave
imports out; memory is the process's peak. Then the same for INT8, its size alone.
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

import numpy as np

SEED, SHARD, LAYER = 7, "L01", 1
LENGTHS, PROBES = (1, 4), 8
CONFIG = {
    "model_type": "zaya", "num_hidden_layers": 80, "hidden_size": 2048, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5, "rope_theta": 5e6,
    "num_experts": 16, "ffn_hidden_size": 4096, "zaya_mlp_expansion": 256, "norm_epsilon": 1e-5,
    "vocab_size": 262_272,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="keeps and reuses checkpoint and packages")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ours", action="store_true", help="leave coremltools' side out")
    parser.add_argument("--step", choices=sorted(STEPS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(STEPS[options.step](options.folder)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        names = ["build", "checkpoint", "ours"] + ([] if options.ours else ["theirs"])
        found = {name: run(name, folder, options.threads) for name in [*names, "int8"]}
    report(found)


def run(step: str, folder: Path, threads: int) -> dict[str, Any]:
    """One step in a process of its own."""
    count = str(threads)
    environment = os.environ | {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
    command = [sys.executable, "-m", "benchmarks.zaya_gate", "--step", step]
    done = subprocess.run(
        [*command, "--folder", str(folder)], env=environment, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(found: dict[str, dict[str, Any]]) -> None:
    """Lines of a table for benchmarks/README.md."""
    for name, facts in found.items():
        print(f"| {name} | " + " | ".join(f"{key} {value}" for key, value in facts.items()) + " |")
    if "theirs" in found:
        ours, theirs = found["ours"], found["theirs"]
        print(
            f"measurement {theirs['seconds'] / ours['seconds']:.1f} times as fast, "
            f"{theirs['peak MiB'] / ours['peak MiB']:.1f} times as lean; "
            f"cosines differ by {abs(ours['output min'] - theirs['output min']):.1e}"
        )


def cut() -> Any:
    """The shard alone, in the notes' form."""
    from pytest_ane.models.families import Cut

    return Cut((SHARD,), 4, variant="notes")


def manifest(compression: str) -> Any:
    """The shard as a manifest describes it."""
    from pytest_ane.manifest import load

    text = f"""
    [models.zaya]
    family = "zaya"
    variant = "notes"
    source = {{ seeded = {SEED} }}
    shards = "L01"
    max-tokens = 4
    compression = {compression}
    """
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return load(Path(file.name))


UNIFORM = (
    '{ method = "palettize", mode = "uniform", nbits = 4, granularity = "per_grouped_channel", '
    'group_size = 32, keep = ["*router*"] }'
)
INT8 = '{ method = "linear", dtype = "int8", keep = ["*router*"] }'


def build(folder: Path, compression: str = UNIFORM, name: str = "cache") -> dict[str, Any]:
    """Generate, convert, palettize and save."""
    import torch  # noqa: F401

    from pytest_ane.make import Cache, build_shard
    from pytest_ane.make.coremltools_quiet import import_coremltools
    from pytest_ane.mlprogram.model import read_model
    from pytest_ane.models.families import Cut
    from pytest_ane.models.families.registry import get_family
    from pytest_ane.models.sources import open_source

    import_coremltools()
    model = manifest(compression).models[0]
    family = get_family("zaya")
    start = time.perf_counter()
    artifact = build_shard(
        model.shards[0],
        Cache(folder / name),
        identity={},
        model=lambda: family.open_model(
            open_source(model.source, family.spread),
            Cut(model.ids, model.max_tokens, variant=model.variant),
        ),
    )
    seconds = time.perf_counter() - start
    operations = read_model(artifact.path).main.block.operations
    (folder / f"{name}.txt").write_text(str(artifact.path))
    return {
        "seconds": round(seconds, 2),
        "peak MiB": peak(),
        "package MB": round(artifact.size / 1e6, 2),
        "convolutions": sum(op.op == "conv" for op in operations),
    }


def int8(folder: Path) -> dict[str, Any]:
    """The same shard in INT8 per channel."""
    return build(folder, INT8, "int8")


def checkpoint(folder: Path) -> dict[str, Any]:
    """The layer's seeded tensors as a checkpoint, as a user would have the published ones."""
    from safetensors.numpy import save_file

    from pytest_ane.models.families.registry import get_family
    from pytest_ane.models.sources import SeededSource

    family = get_family("zaya")
    kept: dict[str, Any] = {}

    class Keeping(SeededSource):
        def tensor(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
            kept[name] = super().tensor(name, shape, np.float16)
            return kept[name].astype(dtype, copy=False)

        def rows(self, name: str, *args: Any) -> Any:
            kept[name] = super().rows(name, *args)
            return kept[name]

    family.open_model(Keeping(SEED, family.spread, {}), cut()).conversion(SHARD)
    (folder / "weights").mkdir(exist_ok=True)
    (folder / "weights" / "config.json").write_text(json.dumps(CONFIG))
    save_file(kept, folder / "weights" / "model.safetensors")
    return {"tensors": len(kept), "MB": round(sum(t.nbytes for t in kept.values()) / 1e6, 1)}


def probes() -> list[np.ndarray]:
    """Eight of each length, root mean square 1."""
    from pytest_ane.probes.seeded import seeded

    return [
        hidden
        for length in LENGTHS
        for _, _, hidden in seeded(
            ("gaussian",), count=PROBES, seed=SEED, length=length, width=2048
        )
    ]


def ours(folder: Path) -> dict[str, Any]:
    """Reference from the checkpoint, package by the executor, cosines."""
    import torch

    from pytest_ane.backends import CpuBackend
    from pytest_ane.gates.fidelity import measure
    from pytest_ane.manifest import SourceTable
    from pytest_ane.models.families.registry import get_family
    from pytest_ane.models.reference import zaya as reference  # noqa: F401
    from pytest_ane.models.sources import open_source
    from pytest_ane.probes.recording import HiddenProbe

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    inputs = probes()
    before, start = peak(), time.perf_counter()
    family = get_family("zaya")
    source = open_source(SourceTable(path=folder / "weights"), family.spread)
    model = family.open_model(source, cut())
    expected = model.reference(SHARD)(inputs)
    between = time.perf_counter()
    layout = model.layout(SHARD)
    cases = [
        HiddenProbe("gaussian", str(i), 0, ((0, len(x)),), x, y, residual(source, x)).case(layout)
        for i, (x, y) in enumerate(zip(inputs, expected, strict=True))
    ]
    runner = CpuBackend().load(Path((folder / "cache.txt").read_text()))
    found = measure(runner, cases, compared=True, provenance={})
    seconds = time.perf_counter() - start
    cosines = [x for c in found.comparisons for x in c.cosines]
    parts = [x for c in found.comparisons for x in c.contributions]
    return {
        "seconds": round(seconds, 3),
        "reference s": round(between - start, 3),
        "peak MiB": peak(),
        "imports MiB": before,
        **cosines_of(cosines, parts),
    }


def residual(source: Any, x: np.ndarray) -> np.ndarray:
    """The residual path of the shard alone."""
    scale, bias = (
        source.tensor(f"model.layers.{LAYER}.res_scale.residual_{name}", (2048,))
        for name in ("scale", "bias")
    )
    path: np.ndarray = x * scale + bias
    return path


def cosines_of(outputs: list[float], parts: list[float]) -> dict[str, float]:
    """Minimum and mean of both kinds."""
    return {
        "output min": float(np.min(outputs)),
        "output mean": float(np.mean(outputs)),
        "contribution min": float(np.min(parts)),
        "contribution mean": float(np.mean(parts)),
    }


def theirs(folder: Path) -> dict[str, Any]:
    """Decompression by coremltools, both sides as eager torch modules in float32."""
    import torch
    from safetensors.torch import load_file

    from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools

    ct = import_coremltools()
    inputs = probes()
    start = time.perf_counter()
    with converter_notes():
        package = ct.models.MLModel((folder / "cache.txt").read_text(), skip_model_load=True)
        dense = ct.optimize.coreml.decompress_weights(package)
        found = ct.optimize.coreml.get_weights_metadata(dense, weight_threshold=0)
    weights = {name: torch.from_numpy(np.array(w.val)).float() for name, w in found.items()}
    own = {k: v.float() for k, v in load_file(folder / "weights" / "model.safetensors").items()}
    shard, reference = eager(packed(weights, own)), eager(by_name(own))
    residual = [own[f"model.layers.{LAYER}.res_scale.{name}"] for name in RESIDUAL]
    norm = own[f"model.layers.{LAYER}.input_norm.weight"]
    cosines: list[float] = []
    with torch.inference_mode():
        for x in map(torch.from_numpy, inputs):
            y, z = (side(x, norm, residual) for side in (shard, reference))
            cosines += torch.cosine_similarity(y.double(), z.double()).tolist()
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "peak MiB": peak(),
        "output min": float(np.min(cosines)),
    }


RESIDUAL = ("residual_scale", "residual_bias", "hidden_states_scale", "hidden_states_bias")


def by_name(own: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint's tensors under short names."""
    start = f"model.layers.{LAYER}.zaya_block."
    return {name.removeprefix(start): value for name, value in own.items()}


def packed(weights: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The package's experts beside the router, which is the checkpoint's own there, in fp16."""
    found = by_name(own)
    for e in range(16):
        for layer in ("fc1", "fc2"):
            (name,) = [n for n in weights if n.startswith(f"experts_{e}_{layer}_weight")]
            found[f"experts.local_experts.{e}.linear_{layer}.weight"] = weights[name].flatten(1)
    return found


def eager(w: dict[str, Any]) -> Any:
    """The layer on `[T, C]`."""
    import torch
    from torch.nn import functional as F

    def norm(x: Any, weight: Any) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight

    def run(x: Any, weight: Any, residual: Any) -> Any:
        h = norm(x, weight)
        inner = F.linear(h, w["router.down_proj.weight"], w["router.down_proj.bias"])
        inner = norm(F.silu(inner), w["router.rmsnorm_eda.weight"])
        for i in (0, 2):
            layer = f"router.router_mlp.{i}"
            inner = F.silu(F.linear(inner, w[f"{layer}.weight"], w[f"{layer}.bias"]))
        logits = F.linear(inner, w["router.router_mlp.4.weight"], w["router.balancing_biases"])
        chosen = torch.softmax(logits, -1)
        mixed = torch.zeros_like(x)
        for e in range(16):
            own = f"experts.local_experts.{e}."
            gate, up = F.linear(h, w[f"{own}linear_fc1.weight"]).chunk(2, -1)
            given = F.linear(F.silu(gate) * up, w[f"{own}linear_fc2.weight"])
            mixed += chosen[:, e, None] * given
        scale, bias, hidden_scale, hidden_bias = residual
        return x * scale + bias + mixed * hidden_scale + hidden_bias

    return run


def peak() -> int:
    """Peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


STEPS = {"build": build, "checkpoint": checkpoint, "ours": ours, "theirs": theirs, "int8": int8}

if __name__ == "__main__":
    main()
