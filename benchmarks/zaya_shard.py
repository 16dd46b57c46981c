"""A mixture-of-experts shard at the full size of ZAYA1-8B's, with random 4-bit palettes.

2048 channels, a router of four convolutions, 16 experts of 2048 -> 4096 -> 2048: 36 convolutions,
201 M weights, 101 MB. The package is written directly, in seconds; its numbers mean nothing, its
cost is real.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.mlprogram.packages import Program

WIDTH, HIDDEN, ROUTER, EXPERTS, GROUP = 2048, 4096, 256, 16, 32


class Shard:
    """The shard's program as it grows; every result is `[1, C, T, 1]`."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.program = Program()
        self.dense: dict[str, tuple[int, int]] = {}

    def conv(self, name: str, x: str, rows: int, columns: int, palette: bool = True) -> str:
        """A 1x1 convolution; palettes of 16 values for every 32 rows where they divide."""
        shape = (rows, columns, 1, 1)
        if palette:
            indices = self.random.integers(0, 256, rows * columns // 2, dtype=np.uint8)
            self.program.blob(f"{name}_indices", "UINT4", shape, indices.tobytes())
            spread = np.sort(self.random.standard_normal((rows // GROUP, 16)))
            tables = (spread / np.sqrt(columns)).astype(np.float16)
            lut = (rows // GROUP, 1, 1, 1, 16, 1)
            self.program.blob(f"{name}_lut", "FLOAT16", lut, tables.tobytes())
            self.inline(
                "constexpr_lut_to_dense", f"{name}_w", shape,
                indices=f"{name}_indices", lut=f"{name}_lut",
            )  # fmt: skip
        else:
            weight = self.random.standard_normal(shape) / np.sqrt(columns)
            data = weight.astype(np.float16).tobytes()
            self.program.blob(f"{name}_w", "FLOAT16", shape, data)
        self.dense[name] = (rows, columns)
        self.op("conv", name, rows, x=x, weight=f"{name}_w")
        return name

    def inline(self, kind: str, name: str, shape: tuple[int, ...], **constants: str) -> None:
        """An operation that holds its constants itself, as coremltools writes them."""
        operations = self.program.block.operations
        values = {c.outputs[0].name: c.attributes["val"] for c in operations if c.type == "const"}
        operation = self.program.op(kind, name, "FLOAT16", shape)
        for key, constant in constants.items():
            operation.inputs[key].arguments.add().value.CopyFrom(values[constant])
        kept = [op for op in operations if op.outputs[0].name not in constants.values()]
        del operations[:]
        operations.extend(kept)

    def op(self, kind: str, name: str, channels: int, **inputs: Any) -> str:
        """An operation of fp16 results."""
        self.program.op(kind, name, "FLOAT16", (1, channels, None, 1), **inputs)
        return name

    def save(self, folder: Path, positions: int) -> Path:
        """Write `<folder>/model.mlpackage`, for 1 to `positions` positions."""
        p = self.program
        ranges = ((1, 1), (WIDTH, WIDTH), (1, positions), (1, 1))
        p.input("x", (1, WIDTH, 1, 1), "FLOAT16", ranges=ranges, kind=65552)
        for name, value in (("axis", 1), ("parts", 2), ("experts", EXPERTS + 1)):
            p.const(name, value, "INT32")
        hidden = self.conv("down", "x", ROUTER, WIDTH)
        for i in range(2):
            hidden = self.op("silu", f"router_{i}_silu", ROUTER, x=hidden)
            hidden = self.conv(f"router_{i}", hidden, ROUTER, ROUTER)
        hidden = self.op("silu", "router_2_silu", ROUTER, x=hidden)
        self.conv("router", hidden, EXPERTS + 1, ROUTER, palette=False)
        self.op("softmax", "shares", EXPERTS + 1, x="router", axis="axis")
        self.split("shares", "share", EXPERTS + 1, 1, "experts")
        total = "x"
        for e in range(EXPERTS):
            self.conv(f"fc1_{e}", "x", HIDDEN, WIDTH)
            self.split(f"fc1_{e}", f"half_{e}", 2, HIDDEN // 2, "parts")
            gate = self.op("silu", f"gate_{e}", HIDDEN // 2, x=f"half_{e}_0")
            inner = self.op("mul", f"inner_{e}", HIDDEN // 2, x=gate, y=f"half_{e}_1")
            out = self.conv(f"fc2_{e}", inner, WIDTH, HIDDEN // 2)
            scaled = self.op("mul", f"scaled_{e}", WIDTH, x=out, y=f"share_{e}")
            total = self.op("add", f"sum_{e}", WIDTH, x=total, y=scaled)
        p.output(total, 65552)
        return p.save(folder)

    def split(self, x: str, name: str, parts: int, channels: int, count: str) -> None:
        """Equal parts along the channels, named `<name>_0` and so on."""
        operation = self.program.op(
            "split", f"{name}_0", "FLOAT16", (1, channels, None, 1),
            x=x, num_splits=count, axis="axis",
        )  # fmt: skip
        for i in range(1, parts):
            operation.outputs.add().CopyFrom(operation.outputs[0])
            operation.outputs[i].name = f"{name}_{i}"
