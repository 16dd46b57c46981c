"""Every fault changes what a shard computes, and no benign rewriting does; tiny models only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_ane.models.families import Cut
from pytest_ane.models.families._decoders import LLAMA
from pytest_ane.project.models import OpenModel
from pytest_ane.project.project import Project, read_project
from tests.battery import FAULTS
from tests.battery.effect import EFFECT, HARMLESS, Effects, every_probe
from tests.battery.fault import Fault
from tests.models.families.llama.tiny import tiny_source

pytestmark = pytest.mark.slow
MAX_TOKENS, CONTEXT = 64, 256
MODULES = [
    pytest.param(fault, shard, id=f"{fault.name}@{shard}")
    for fault in FAULTS.values()
    if fault.place in ("module", "host")
    # One block of the tiny model stands for all of the default model's.
    for shard in fault.shards
    if not {shard, "tiny"} & fault.equivalent.keys()
    and not shard.startswith(("smollm2:L15", "smollm2:L29"))
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of so small products only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def tiny_llama() -> Any:
    """Two blocks of 16 channels with logits of tens."""
    source = tiny_source(layers=2, vocabulary=40, tied=False)
    for name, factor in (("attn_k", 2.0), ("ffn_gate", 2.0), ("output.", 20.0)):
        for key in (key for key in source.tensors if name in key):
            source.tensors[key] = source.tensors[key] * np.float32(factor)
    cut = Cut(("L00", "L01", "head.0", "head.1"), MAX_TOKENS, CONTEXT, stateful=True)
    return LLAMA.open_model(source, cut)


@cache
def effects(shard: str) -> Effects:
    """The tiny shard that stands for one of the manifests."""
    name, _, part = shard.partition(":")
    if name == "smollm2":
        model, size = tiny_llama(), (MAX_TOKENS, CONTEXT)
        part = part if part.startswith("head") else "L01"
    else:
        model, size = _small(name), (4, 48)
    return Effects(model, part, every_probe(model.layout(part), *size))


@cache
def _small(name: str) -> Any:
    project: Project = read_project(Path(__file__).with_name("small.toml"), None)
    model = next(m for m in project.manifest.models if m.name == name)
    return OpenModel(model, None).language_model  # type: ignore[arg-type]


@pytest.mark.drawn
@pytest.mark.parametrize(("fault", "shard"), MODULES)
def test_effect(fault: Fault, shard: str) -> None:
    effect = effects(shard).of(fault)
    if fault.benign:
        assert effect < HARMLESS
    else:
        assert effect > EFFECT


def test_there_are_enough() -> None:
    benign = sum(fault.benign for fault in FAULTS.values())
    assert len(FAULTS) - benign >= 150
    assert benign >= 30
