"""Ten faults that people make in a stack of packages, as another package or another manifest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_stack"
sys.path.insert(0, str(EXAMPLE))
import own_stack  # noqa: E402

Write = Callable[[Path], None]
ATTENTION = {"x": own_stack.WIDTH} | dict.fromkeys(
    ("rope_cos", "rope_sin", "attn_mask", "kv_write_mask"), 0
)
PACK = {"ffn_normed": own_stack.WIDTH, "routing_weights": 2}


@dataclass(frozen=True)
class Fault:
    """A fault, and where it is.

    Attributes:
        name: of the fault.
        shard: the package that a verdict or bisect must name.
        write: writes it over a folder with `packages` and `shards.toml`.
    """

    name: str
    shard: str
    write: Write


def of_package(module: Any, name: str, inputs: dict[str, int], outputs: list[str]) -> Write:
    """Another module in the place of a compressed package; its uncompressed one stays right."""

    def write(folder: Path) -> None:
        package = own_stack._converted(module(), inputs, outputs)[""]
        package.save(str(folder / "packages" / f"{name}.mlpackage"))

    return write


def of_manifest(*changes: tuple[str, str]) -> Write:
    """Other texts in the manifest."""

    def write(folder: Path) -> None:
        text = (folder / "shards.toml").read_text()
        for before, after in changes:
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        (folder / "shards.toml").write_text(text)

    return write


def of_attention(kind: Any) -> Write:
    """Another attention on the same weights."""
    return of_package(lambda: _attention(kind), "attention", ATTENTION, ["hidden"])


class _Forgetful(own_stack.Attention):
    """It writes its caches and sees none of what earlier calls left in them."""

    def seen(self, q: Any, keys: Any, values: Any, mask: Any) -> Any:
        latest = torch.where(mask.amax(2, keepdim=True) == 0, 1.0, 0.0)
        only = latest - torch.cat([latest[..., 1:], 0 * latest[..., :1]], -1)
        return super().seen(q, keys * only, values * only, mask)


class _Late(own_stack.Attention):
    """It sees its caches as the call before left them."""

    def seen(self, q: Any, keys: Any, values: Any, mask: Any) -> Any:
        before = torch.cat([mask[..., 1:], 0 * mask[..., :1] - 1e4], -1)
        return super().seen(q, keys, values, before)


class _MaskShifted(own_stack.Attention):
    """Its mask is one slot off: each position sees the next slot, and not the first."""

    def seen(self, q: Any, keys: Any, values: Any, mask: Any) -> Any:
        return super().seen(q, keys, values, torch.cat([mask[..., -1:], mask[..., :-1]], -1))


def _attention(kind: Any) -> Any:
    module = kind()
    module.load_state_dict(own_stack.stack().attention.state_dict())
    return module.eval()


def _unrouted() -> Any:
    """Experts that count alike, whatever the router says."""

    class Unrouted(own_stack.Experts):
        def forward(self, normed: Any, weights: Any) -> Any:
            return super().forward(normed, 0 * weights + 0.25)

    module = Unrouted()
    module.load_state_dict(own_stack.stack().experts[0].state_dict())
    return module.eval()


def _function_swapped(folder: Path) -> None:
    """A package whose second function has the weights of another layer."""
    parts = folder / "packages"
    other = own_stack._converted(own_stack.stack().attention, ATTENTION, ["hidden"], 4)[""]
    other.save(str(parts / "verify4.mlpackage"))
    own_stack._save_functions(parts, "", ("decode", "verify4"))


def _embedding_shifted(folder: Path) -> None:
    file = folder / "packages" / "embedding.npy"
    np.save(file, np.roll(np.load(file), 1, axis=0))


FAULTS = (
    Fault("state dropped", "attention", of_attention(_Forgetful)),
    Fault("state late by one", "attention", of_attention(_Late)),
    Fault("function swapped", "decoder", _function_swapped),
    Fault(
        "routing ignored",
        "experts.0",
        of_package(_unrouted, "experts.0", PACK, ["moe_contribution"]),
    ),
    Fault(
        "pack order",
        "experts.0",
        of_manifest(
            ("routing[0:2]", "routing[x]"),
            ("routing[2:4]", "routing[0:2]"),
            ("routing[x]", "routing[2:4]"),
        ),
    ),
    Fault(
        "stream added twice",
        "attention",
        of_manifest(
            (
                'takes = { x = "x" }\ngives = { hidden = "x" }\n\n'
                '[[models.mine.chain]]\nshard = "router"',
                'takes = { x = "x" }\nadds = { hidden = "x" }\n\n'
                '[[models.mine.chain]]\nshard = "router"',
            )
        ),
    ),
    Fault(
        "head slices swapped",
        "head.",
        of_manifest(
            ('shard = "head.0"\n', 'shard = "head.x"\n'),
            ('shard = "head.1"\n', 'shard = "head.0"\n'),
            ('shard = "head.x"\n', 'shard = "head.1"\n'),
        ),
    ),
    Fault("embedding row shifted", "attention", _embedding_shifted),
    Fault("mask off by one", "attention", of_attention(_MaskShifted)),
    Fault(
        "feedback from the wrong output",
        "conv",
        of_manifest(("{ new_conv_state =", "{ old_conv_state =")),
    ),
)
