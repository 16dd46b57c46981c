"""What the ANE's arithmetic (h16+, simulated) costs the models of the repository's manifests.

    python -m benchmarks.ane_real_models [--cache DIR]

SmolLM2-135M as `shards.toml` compresses it, its whole stack on the golden prompts, against float32;
one mixture of ZAYA1-8B and one pack of Gemma-4-26B-A4B at full size (seeded weights), on the probes
of their manifests. Each in the program's own types and in the ANE's arithmetic, as it is and, where
it has SiLU, with x * (0.5 * tanh(x / 2) + 0.5) in its place. Prints the tables of
docs/explanations/ane-arithmetic.md. Packages that are not in the cache are built.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ane_model import MODEL, RuledBackend, logits_of, opened, silu_by_tanh
from pytest_ane.gates.fidelity import Fidelity, measure
from pytest_ane.mlprogram.arithmetic import SIMULATED
from pytest_ane.mlprogram.executor.ane import Grade, Rule
from pytest_ane.mlprogram.executor.ane.simulation import rules
from pytest_ane.mlprogram.model import read_model
from pytest_ane.project.models import OpenModel
from pytest_ane.project.project import Project
from pytest_ane.project.stack import Stack

ROOT = Path(__file__).resolve().parents[1]
SHARDS = (("zaya1-8b.toml", "L01"), ("gemma4.toml", "L00.p0"))
REWRITTEN = "SiLU by tanh"
HEADER = """| shard | arithmetic | cosine, min / mean | contribution, min / mean | known |
|---|---|---|---|---|"""
"""`known`: multiply-accumulates by rules that are not unknown."""


def silu_as_typed(x: Any) -> Any:
    """`silu_by_tanh`, each operation in float32 and rounded to fp16."""

    def half(values: Any) -> Any:
        return np.asarray(values, np.float16).astype(np.float32)

    return half(x * half(half(np.float32(0.5) * half(np.tanh(half(x / 2)))) + np.float32(0.5)))


def backends(*, has_silu: bool) -> dict[str, RuledBackend]:
    """The executor in each arithmetic, by what a table's row is called."""
    every = dict(rules())
    made = {"typed": RuledBackend(None), SIMULATED: RuledBackend(every)}
    if has_silu:
        typed, ane = (Rule(Grade.FITTED, f) for f in (silu_as_typed, silu_by_tanh))
        made[f"typed, {REWRITTEN}"] = RuledBackend({"silu": typed})
        made[f"{SIMULATED}, {REWRITTEN}"] = RuledBackend(every | {"silu": ane})
    return made


def print_stack(project: Project) -> None:
    """One row for each arithmetic: logits of the golden prompts."""
    plain, model = project.stack(MODEL), project.model(MODEL)
    assert isinstance(model, OpenModel)
    print("| arithmetic | top-1 | mean KL | lowest centred cosine | perplexity |")
    print("|---|---|---|---|---|")
    for name, backend in backends(has_silu=True).items():
        s = logits_of(Stack(model, plain.artifacts, backend), plain.golden)
        print(
            f"| {name} | {s.top1:.3f} | {s.kl:.4f} | {s.centred_cosine.min:.4f} "
            f"| {s.perplexity:.2f} |",
            flush=True,
        )


def print_shard(project: Project, name: str) -> None:
    """One row for each arithmetic: fidelity of one shard on its probes."""
    shard = next(shard for shard in project.shards if shard.id == name)
    artifact = project.artifact(shard)
    cases = project.cases(shard, artifact)
    operations = read_model(artifact.path).main.block.operations
    for label, backend in backends(has_silu=any(op.op == "silu" for op in operations)).items():
        runner = backend.load(artifact.path)
        measured = measure(runner, cases, compared=True, provenance={})
        shares = runner.rule_shares.shares_of_products if runner.rule_shares else {}
        known = f"{1 - shares['unknown']:.1%}" if label.startswith(SIMULATED) and shares else ""
        print(
            f"| {shard.qualified} | {label} | {_cosines(measured)} | {known} |",
            flush=True,
        )


def _cosines(measured: Fidelity) -> str:
    """Lowest and mean cosines of outputs, and of what they add to their residual path."""
    parts = [c.rest for c in measured.comparisons]
    cells = []
    for values in (
        [x for c in parts for x in c.cosines],
        [x for c in parts for x in c.contributions],
    ):
        cells.append(f"{np.min(values):.5f} / {np.mean(values):.5f}" if values else "")
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, help="cache folder; default is the user's")
    options = parser.parse_args()
    with opened((ROOT / "shards.toml").read_text(), options.cache) as project:
        print_stack(project)
    print(HEADER)
    for file, shard in SHARDS:
        with opened((ROOT / "examples" / file).read_text(), options.cache) as project:
            print_shard(project, shard)


if __name__ == "__main__":
    main()
