"""Checkpoints that transformers saves, through the gates: converted, compressed, green."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.families.decoder.cases import CASES

MANIFEST = """
[models.{name}]
family = "{family}"
source = {{ path = "{name}" }}
shards = "L00-L{last:02d}, head.0-head.1"
max-tokens = 8
context = 64
stateful = true

[models.{name}.compression]
method = "palettize"
mode = "uniform"
nbits = 8
granularity = "per_grouped_channel"
group_size = 16

[models.{name}.policy.behaviour]
min-top1 = 0.6

[[models.{name}.prompts]]
name = "digits"
ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
"""
WIDER = {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.1, "head_dim": 16}
NAMES = ("qwen2", "gemma3", "phi3-window", "smollm3")


@pytest.mark.heavy
def test_every_gate_is_green(tmp_path: Path) -> None:
    text = ""
    for case in (case for case in CASES if case.name in NAMES):
        wider = WIDER if case.kind == "Gemma3Text" else {k: WIDER[k] for k in list(WIDER)[:3]}
        wide = replace(case, changes={**case.changes, **wider})
        wide.save(tmp_path / case.name)
        last = wide.changes.get("num_hidden_layers", 3) - 1
        text += MANIFEST.format(name=case.name, family=case.family, last=last)
    (tmp_path / "shards.toml").write_text(text)
    command = [sys.executable, "-m", "pytest", "--ane-shards=all", "-m", "gate", "--ane-cache=c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert (
        "passed: behaviour 4/4, compression 26/26, fidelity 26/26, placement 26/26" in done.stdout
    )
