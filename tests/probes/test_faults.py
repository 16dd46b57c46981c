"""Wrong modules that pass probes of the first positions and are caught by `ragged` and others.

The module runs in torch, in float32; the fault is in it, and the reference stays right.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pytest_ane.manifest import Probes, Shard
from pytest_ane.mlprogram.arrays import Arrays, DoubleArray
from pytest_ane.models.families.decoder import DecoderModel
from pytest_ane.models.families.decoder._forms import StatefulBlock
from pytest_ane.probes.cases import Case
from pytest_ane.probes.recording import HiddenProbe, answered_probes, in_steps
from pytest_ane.probes.seeded import gaussian, generator
from tests.models.families.llama.tiny import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.drawn]
BOUND = 0.02
"""Relative L2 error of the contribution; a right module is far below it."""


class Lost(StatefulBlock):
    """Slots from `slot` on stay empty."""

    slot: int

    def seen(self, k: Tensor, v: Tensor, write: Tensor | None) -> tuple[Tensor, Tensor]:
        assert write is not None
        write = write.clone()
        write[..., self.slot :] = 0
        return super().seen(k, v, write)


class LostFrom128(Lost):
    slot = 128


class LostLast(Lost):
    slot = -1


class LostFrom1500(Lost):
    slot = 1500


class Ring(StatefulBlock):
    """Slots are used again after 1,024 positions."""

    def seen(self, k: Tensor, v: Tensor, write: Tensor | None) -> tuple[Tensor, Tensor]:
        assert write is not None
        low, high = write.split(1024, dim=-1)
        return super().seen(k, v, torch.cat([low + high, torch.zeros_like(high)], dim=-1))


class Accumulating(StatefulBlock):
    """A slot that is written again keeps what it held."""

    def seen(self, k: Tensor, v: Tensor, write: Tensor | None) -> tuple[Tensor, Tensor]:
        self.k_cache += k @ write
        self.v_cache += v @ write
        return self.k_cache, self.v_cache


class Unmasked(StatefulBlock):
    """The mask says what is causal in a call; besides, every slot that was ever written is seen."""

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor | None = None
    ) -> Tensor:
        assert write is not None
        written = self.k_cache.abs().sum(dim=(0, 1, 2)) > 0
        others = written & (write.sum(dim=2)[0, 0] == 0)
        given: Tensor = super().forward(x, cos, sin, torch.where(others, 0.0, mask), write)
        return given


class Windowed(StatefulBlock):
    """Attention sees the last 512 positions alone."""

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor | None = None
    ) -> Tensor:
        assert write is not None
        slots = torch.arange(write.shape[-1])
        mask = torch.where(write.argmax(-1, keepdim=True) - slots >= 512, -1e4, mask)
        y: Tensor = super().forward(x, cos, sin, mask, write)
        return y


class ShortCalls(StatefulBlock):
    """A tenth too much for T = 2 to 4, the calls of a verifier."""

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor | None = None
    ) -> Tensor:
        y: Tensor = super().forward(x, cos, sin, mask, write)
        return x + 1.1 * (y - x) if 2 <= x.shape[2] <= 4 else y


class SquaringNorm(nn.Module):
    """RMSNorm whose squares overflow fp16, so that nothing is left of what they divide."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        square = x.half().square().float().mean(dim=1, keepdim=True)
        return x * torch.rsqrt(square + 1e-5) * self.weight


class Squaring(StatefulBlock):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.attention_norm = SquaringNorm(self.attention_norm.weight)  # type: ignore[assignment]


class TorchRunner:
    """A module with states as a backend runs a package."""

    def __init__(self, module: StatefulBlock) -> None:
        self.module = module.float().eval()

    def make_state(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(b) for name, b in self.module.named_buffers()}

    def predict(self, inputs: Arrays, state: dict[str, Tensor]) -> Arrays:
        names = ("x", "cos", "sin", "mask", "write")
        with torch.inference_mode():
            for name, buffer in self.module.named_buffers():
                buffer.copy_(state[name])
            y = self.module(*(torch.from_numpy(inputs[name]) for name in names))
            state |= {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        return {"y": y.numpy()}


def of_first_positions(model: DecoderModel) -> list[Case]:
    """Gaussian probes of each slot once, in calls of T = 1, 33 and 64."""
    layout = model.layout("L00")
    shapes = ((8, 1), (66, 33), (128, 64)) if model.config.context == 256 else ((8, 1), (8, 4))
    hidden = [gaussian(generator(length), (length, layout.width)) for length, _ in shapes]
    return [
        HiddenProbe("gaussian", "g", 0, in_steps(*shape), x, y, x).case(layout)
        for shape, x, y in zip(shapes, hidden, model.reference("L00")(hidden), strict=True)
    ]


def of_kinds(
    model: DecoderModel, max_tokens: int, *kinds: str, lengths: tuple[int, ...] = ()
) -> list[Case]:
    context = model.config.context
    probes = Probes.model_validate({"kinds": kinds, "lengths": lengths})
    shard = Shard(model="m", id="L00", probes=probes, max_tokens=max_tokens, context=context)
    layout = model.layout("L00")
    return [probe.case(layout) for probe in answered_probes(model, shard, lambda: [])]


def errors(cases: list[Case], block: type[StatefulBlock], model: DecoderModel) -> Iterator[float]:
    """Each case's greatest relative error of what the block adds."""
    runner = TorchRunner(block(model.config, 0, model.weights.block(0)))
    for case in cases:
        state = runner.make_state()
        parts = [case.rows(runner.predict(call, state)) for call in case.calls]
        rows = (case.joined(parts)["y"], case.expected["y"], case.residual["y"])
        actual, expected, path = (case.compared(x).astype(np.float64) for x in rows)
        yield float(np.max(norms(actual - expected) / norms(expected - path)))


def norms(rows: DoubleArray) -> DoubleArray:
    lengths: DoubleArray = np.linalg.norm(rows, axis=1)
    return lengths


@pytest.mark.parametrize(
    ("block", "max_tokens", "context", "kind"),
    [
        (LostFrom128, 64, 256, "ragged"),
        (LostLast, 64, 256, "ragged"),
        (ShortCalls, 64, 256, "ragged"),
        (Accumulating, 64, 256, "rewrite"),
        (Unmasked, 64, 256, "rewrite"),
        (Squaring, 64, 256, "massive"),
        (LostFrom1500, 4, 2048, "ragged"),
        (LostLast, 4, 2048, "ragged"),
        (Ring, 4, 2048, "ragged"),
    ],
)
def test_a_fault_that_first_positions_do_not_show(
    block: type[StatefulBlock], max_tokens: int, context: int, kind: str
) -> None:
    model = tiny_model(context=context)
    first, cases = of_first_positions(model), of_kinds(model, max_tokens, kind)
    assert max(errors(first + cases, StatefulBlock, model)) < BOUND / 10
    assert max(errors(first, block, model)) < BOUND
    assert max(errors(cases, block, model)) > BOUND


def test_a_fault_that_only_a_long_sequence_shows() -> None:
    model = tiny_model(context=1024)
    others = of_kinds(model, 64, "gaussian", "massive", "ragged", "rewrite")
    (long,) = (c for c in of_kinds(model, 64, "gaussian", lengths=(1024,)) if c.kind == "long")
    assert max(errors([*others, long], StatefulBlock, model)) < BOUND / 10
    assert max(errors(others, Windowed, model)) < BOUND / 10
    assert max(errors([long], Windowed, model)) > 10 * BOUND
