"""The families' shards: programs, converted modules and float32 references count alike.

Torch counts a multiply-accumulate as two operations, and convolutions, products and attention only,
as we do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.make.shard import convert
from pytest_ane.mlprogram.model import read_model
from pytest_ane.tools._costs import Costs, count_costs
from tests.models.families.gemma4.tiny import tiny_model as gemma4
from tests.models.families.llama.tiny import tiny_model as llama
from tests.models.families.zaya.tiny import tiny_model as zaya

pytestmark = [pytest.mark.slow, pytest.mark.drawn]

CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "llama block": (lambda: llama(("L00", "head.0")), "L00"),
    "llama block with states": (lambda: llama(("L00", "head.0"), context=12), "L00"),
    "llama head": (lambda: llama(("L00", "head.0")), "head.0"),
    "zaya attention": (lambda: zaya(("L00", "L01", "head.0")), "L00"),
    "zaya mixture": (lambda: zaya(("L00", "L01", "head.0")), "L01"),
    "zaya head": (lambda: zaya(("L00", "L01", "head.0")), "head.0"),
    "gemma4 attention": (lambda: gemma4(("L00.attn", "head.0")), "L00.attn"),
    "gemma4 pack": (lambda: gemma4(("L00.p0", "head.0")), "L00.p0"),
    "gemma4 last pack": (lambda: gemma4(("L00.p7", "head.0")), "L00.p7"),
    "gemma4 head": (lambda: gemma4(("L00.p7", "head.0")), "head.0"),
}
EXACT = ("llama block", "llama head", "zaya mixture", "zaya head", "gemma4 head")
"""References that multiply just what the programs do."""


@pytest.fixture(scope="module")
def files() -> dict[str, Path]:
    """The packages converted so far, by case."""
    return {}


@pytest.fixture(scope="module")
def packages(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path]
) -> Callable[[str, int], Costs]:
    """Costs of a case's program at a T; it is converted once."""
    models: dict[str, Any] = {}

    def costs(case: str, tokens: int) -> Costs:
        if case not in models:
            make, shard = CASES[case]
            path = tmp_path_factory.mktemp("costs") / "shard.mlpackage"
            with converter_notes():
                convert(make().conversion(shard), max_tokens=4, target="iOS18", subject=shard).save(
                    str(path)
                )
            models[case], files[case] = read_model(path), path
        return count_costs(models[case], tokens)

    return costs


def counted(call: Callable[[], Any]) -> int:
    """MACs as torch counts them."""
    counter = FlopCounterMode(display=False)
    with counter:
        call()
    return counter.get_total_flops() // 2


def of_module(case: str, tokens: int) -> int:
    """MACs of the torch module that is converted."""
    make, shard = CASES[case]
    conversion = make().conversion(shard)
    module = conversion.module.float()
    inputs = [
        torch.zeros([tokens if d == "T" else int(d) for d in port.shape])
        for port in conversion.inputs
    ]
    with torch.inference_mode():
        return counted(lambda: module(*inputs))


def of_reference(case: str, tokens: int) -> int:
    """MACs of the float32 reference on a whole sequence."""
    make, shard = CASES[case]
    model = make()
    hidden = np.random.default_rng(0).standard_normal((tokens, model.layout(shard).width))
    reference = model.reference(shard)
    return counted(lambda: reference([hidden.astype(np.float32)]))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tokens", [1, 4])
def test_a_program_multiplies_what_its_module_does(
    packages: Callable[[str, int], Costs], case: str, tokens: int
) -> None:
    assert packages(case, tokens).macs == of_module(case, tokens) > 0


@pytest.mark.parametrize("case", EXACT)
@pytest.mark.parametrize("tokens", [1, 4])
def test_a_program_multiplies_what_its_reference_does(
    packages: Callable[[str, int], Costs], case: str, tokens: int
) -> None:
    assert packages(case, tokens).macs == of_reference(case, tokens)


@pytest.mark.parametrize("case", ["llama block with states", "zaya attention", "gemma4 attention"])
@pytest.mark.parametrize("tokens", [1, 4])
def test_attention_with_states_looks_at_all_of_them(
    packages: Callable[[str, int], Costs], case: str, tokens: int
) -> None:
    """It multiplies by every position of the state, masked or not, and by the one-hot `write`."""
    heads, kv_heads, head, context = 4, 2, 4, 12
    looks = 2 * heads * head * tokens * (context - tokens)
    writes = 2 * kv_heads * head * tokens * context
    costs = packages(case, tokens)
    if not case.startswith("zaya"):  # Its notes' form is its own reference.
        assert costs.macs - of_reference(case, tokens) == looks + writes
    # Keys and values, in fp16; read once and written once, whole.
    tail = 2 * math.prod(zaya().config.state_shapes(0)["tail"]) if case.startswith("zaya") else 0
    assert costs.held == 2 * 2 * kv_heads * head * context + tail
    assert costs.states == 2 * costs.held


def test_a_pack_runs_experts_that_were_not_chosen(packages: Callable[[str, int], Costs]) -> None:
    """All its experts run at every position; the reference runs those that count.

    Of the last pack the reference runs the whole layer's feed-forward, so nothing can be told.
    """
    tokens, experts, width, ffn = 4, 2, 8, 4
    make, shard = CASES["gemma4 pack"]
    hidden = np.random.default_rng(0).standard_normal((tokens, make().layout(shard).width))
    found = packages("gemma4 pack", tokens).macs - of_reference("gemma4 pack", tokens)
    assert found % (3 * width * ffn) == 0
    (chosen,) = make().routed(shard)([hidden.astype(np.float32)])
    left_out = found // (3 * width * ffn)
    assert 0 < left_out == tokens * experts - sum(map(len, chosen))


@pytest.mark.parametrize("case", CASES)
def test_weights_are_the_file_but_for_its_padding(
    packages: Callable[[str, int], Costs], files: dict[str, Path], case: str
) -> None:
    """A file and a blob begin with 64 bytes of their own, and a blob at a multiple of 64."""
    weights = packages(case, 1).weights
    assert packages(case, 4).weights == weights
    (file,) = files[case].rglob("weight.bin")
    blobs = int.from_bytes(file.read_bytes()[:4], "little")
    assert weights < file.stat().st_size <= weights + 64 + blobs * (64 + 63)
