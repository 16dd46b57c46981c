"""A Llama block in float64 with plain loops, straight from a GGUF file's rows.

Written apart from the package: it rotates adjacent pairs, as GGUF stores Q and K, where the package
puts the rows in halves first; and it loops over positions and heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def block(
    x: npt.NDArray[Any],
    tensors: Mapping[str, npt.NDArray[Any]],
    *,
    heads: int,
    kv_heads: int,
    epsilon: float = 1e-5,
    theta: float = 10000.0,
) -> Array:
    """One block on `[T, C]`; `tensors` by GGUF names without prefix and suffix."""
    w = {name: value.astype(np.float64) for name, value in tensors.items()}
    x = x.astype(np.float64)
    x = x + _attention(_norm(x, w["attn_norm"], epsilon), w, heads, kv_heads, theta)
    h = _norm(x, w["ffn_norm"], epsilon)
    result = x.copy()
    for t in range(len(x)):
        gate, up = w["ffn_gate"] @ h[t], w["ffn_up"] @ h[t]
        result[t] += w["ffn_down"] @ (gate / (1 + np.exp(-gate)) * up)
    return result


def _norm(x: Array, weight: Array, epsilon: float) -> Array:
    rows = [row / math.sqrt(sum(v * v for v in row) / len(row) + epsilon) * weight for row in x]
    return np.array(rows)


def _attention(h: Array, w: dict[str, Array], heads: int, kv_heads: int, theta: float) -> Array:
    d = len(w["attn_q"]) // heads
    output = np.zeros_like(h)
    for head in range(heads):
        own = slice(head * d, head * d + d)
        shared = head * kv_heads // heads
        other = slice(shared * d, shared * d + d)
        q = [_rotate(w["attn_q"][own] @ row, t, theta) for t, row in enumerate(h)]
        k = [_rotate(w["attn_k"][other] @ row, t, theta) for t, row in enumerate(h)]
        v = [w["attn_v"][other] @ row for row in h]
        for t in range(len(h)):
            scores = np.array([q[t] @ k[s] / math.sqrt(d) for s in range(t + 1)])
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            mixed = sum(weights[s] * v[s] for s in range(t + 1))
            output[t] += w["attn_output"][:, own] @ mixed
    return output


def _rotate(x: Array, position: int, theta: float) -> Array:
    rotated = x.copy()
    for i in range(len(x) // 2):
        angle = position * theta ** (-2 * i / len(x))
        a, b = x[2 * i], x[2 * i + 1]
        rotated[2 * i] = a * math.cos(angle) - b * math.sin(angle)
        rotated[2 * i + 1] = a * math.sin(angle) + b * math.cos(angle)
    return rotated
