"""ZAYA1's layers in float64 with plain loops over positions, heads, taps and experts.

Written apart from the package, from the published formulas and the notes: attention looks back
position by position where the package pads and convolves, and keeps no state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]


def weights(tensors: Mapping[str, npt.NDArray[Any]], layer: int) -> Weights:
    """A layer's tensors in float64 by their names without the layer's prefix."""
    own = f"model.layers.{layer}."
    return {n[len(own) :]: v.astype(np.float64) for n, v in tensors.items() if n.startswith(own)}


def mixture(x: npt.NDArray[Any], w: Weights, experts: int) -> Array:
    """A mixture of experts on `[T, C]`."""
    rows = []
    for row in x.astype(np.float64):
        h, p = _norm(row, w["input_norm.weight"]), routing(row, w)
        given = np.zeros_like(row)
        for e in range(experts):
            name = f"zaya_block.experts.local_experts.{e}.linear_fc"
            both = w[f"{name}1.weight"] @ h
            half = len(both) // 2
            given += p[e] * (w[f"{name}2.weight"] @ (_silu(both[:half]) * both[half:]))
        rows.append(_join(row, given, w))
    return np.array(rows)


def routing(row: Array, w: Weights) -> Array:
    """The router's weights at one position; the last one is for no expert."""
    router = {n.removeprefix("zaya_block.router."): v for n, v in w.items() if ".router." in n}
    h = _norm(row, w["input_norm.weight"])
    r = _silu(router["down_proj.weight"] @ h + router["down_proj.bias"])
    r = _norm(r, router["rmsnorm_eda.weight"])
    for layer in ("router_mlp.0", "router_mlp.2"):
        r = _silu(router[f"{layer}.weight"] @ r + router[f"{layer}.bias"])
    p = np.exp(router["router_mlp.4.weight"] @ r + router["balancing_biases"])
    shares: Array = p / p.sum()
    return shares


def attention(
    x: npt.NDArray[Any],
    w: Weights,
    *,
    heads: int,
    kv_heads: int,
    rotary: int,
    theta: float,
    convolved: bool = True,
) -> Array:
    """Compressed convolutional attention on `[T, C]`."""
    x = x.astype(np.float64)
    qkv = {n.removeprefix("self_attn.qkv."): v for n, v in w.items() if ".qkv." in n}
    normed = [_norm(row, w["input_norm.weight"]) for row in x]
    q0 = [qkv["linear_q.weight"] @ h for h in normed]
    k0 = [qkv["linear_k.weight"] @ h for h in normed]
    d = len(q0[0]) // heads
    group = heads // kv_heads
    q, k, v = [], [], []
    for t, h in enumerate(normed):
        before = normed[t - 1] if t else np.zeros_like(h)
        v.append(np.concatenate([qkv["val_proj1.weight"] @ h, qkv["val_proj2.weight"] @ before]))
        mixed = _convolved(q0, k0, t, qkv, d) if convolved else np.zeros(len(q0[0]) + len(k0[0]))
        query, key = [], []
        for i in range(heads):
            own, shared = q0[t][i * d : i * d + d], k0[t][i // group * d : i // group * d + d]
            raw = (own + shared) / 2 + mixed[i * d : i * d + d]
            query.append(_rotate(_unit(raw), t, rotary, theta))
        for j in range(kv_heads):
            own = k0[t][j * d : j * d + d]
            means = [
                (q0[t][i * d : i * d + d] + own) / 2 for i in range(j * group, (j + 1) * group)
            ]
            raw = sum(means) / group + mixed[(heads + j) * d : (heads + j + 1) * d]
            key.append(_rotate(_unit(raw) * qkv["temp"][j], t, rotary, theta))
        q.append(query)
        k.append(key)
    rows = []
    for t in range(len(x)):
        output = []
        for i in range(heads):
            j = i // group
            scores = np.array([q[t][i] @ k[s][j] / math.sqrt(d) for s in range(t + 1)])
            p = np.exp(scores - scores.max())
            p /= p.sum()
            output.append(sum(p[s] * v[s][j * d : j * d + d] for s in range(t + 1)))
        rows.append(_join(x[t], w["self_attn.o_proj.weight"] @ np.concatenate(output), w))
    return np.array(rows)


def _convolved(q: list[Array], k: list[Array], t: int, qkv: Weights, d: int) -> Array:
    """Both convolutions at one position; before the first there are zeros, and the first bias."""

    def depthwise(s: int) -> Array:
        result = qkv["conv_qk.0.bias"].copy()
        for tap, at in ((0, s - 1), (1, s)):
            if at >= 0:
                result += qkv["conv_qk.0.weight"][:, 0, tap] * np.concatenate([q[at], k[at]])
        return result

    result = qkv["conv_qk.1.bias"].copy()
    for tap, once in ((0, depthwise(t - 1)), (1, depthwise(t))):
        for c in range(len(result)):
            first = c // d * d
            result[c] += qkv["conv_qk.1.weight"][c, :, tap] @ once[first : first + d]
    return result


def _join(x: Array, given: Array, w: Weights) -> Array:
    scaled = x * w["res_scale.residual_scale"] + w["res_scale.residual_bias"]
    result: Array = (
        scaled + given * w["res_scale.hidden_states_scale"] + w["res_scale.hidden_states_bias"]
    )
    return result


def _norm(x: Array, weight: Array, epsilon: float = 1e-5) -> Array:
    result: Array = x / math.sqrt(sum(v * v for v in x) / len(x) + epsilon) * weight
    return result


def _unit(x: Array) -> Array:
    result: Array = x * math.sqrt(len(x)) / math.sqrt(sum(v * v for v in x))
    return result


def _silu(x: Array) -> Array:
    return np.array([v / (1 + math.exp(-v)) for v in x])


def _rotate(x: Array, position: int, rotary: int, theta: float) -> Array:
    rotated, half = x.copy(), rotary // 2
    for i in range(half):
        angle = position * theta ** (-2 * i / rotary)
        a, b = x[i], x[i + half]
        rotated[i] = a * math.cos(angle) - b * math.sin(angle)
        rotated[i + half] = a * math.sin(angle) + b * math.cos(angle)
    return rotated
