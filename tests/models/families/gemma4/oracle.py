"""Gemma 4 in float64 with plain loops, straight from a checkpoint's tensors and configuration.

Written apart from the package: one position, head and expert at a time, the chosen experts picked
by sorting pairs, the window by comparing positions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.models.families.gemma4.tiny import ROOT, MemorySource

Array = npt.NDArray[np.float64]


class Oracle:
    """One layer of a source."""

    def __init__(self, source: MemorySource, layer: int) -> None:
        self.c: dict[str, Any] = source.config["text_config"]
        self.sliding = self.c["layer_types"][layer] == "sliding_attention"
        self.source, self.at = source, f"{ROOT}layers.{layer}."

    def get(self, name: str) -> Array:
        return self.source.tensors[self.at + name].astype(np.float64)

    def norm(self, x: Array, name: str | None) -> Array:
        root = math.sqrt(sum(v * v for v in x) / len(x) + self.c["rms_norm_eps"])
        return x / root * (1.0 if name is None else self.get(f"{name}.weight"))

    def rotate(self, x: Array, position: int) -> Array:
        kind = "sliding_attention" if self.sliding else "full_attention"
        rope = self.c["rope_parameters"][kind]
        half = len(x) // 2
        turning = int(rope.get("partial_rotary_factor", 1.0) * len(x) // 2)
        turned = x.copy()
        for i in range(turning):
            angle = position / rope["rope_theta"] ** (2 * i / len(x))
            a, b = x[i], x[i + half]
            turned[i] = a * math.cos(angle) - b * math.sin(angle)
            turned[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return turned

    def attention(self, x: Array) -> Array:
        d = self.c["head_dim"] if self.sliding else self.c["global_head_dim"]
        q_all, k_all = self.get("self_attn.q_proj.weight"), self.get("self_attn.k_proj.weight")
        own_values = f"{self.at}self_attn.v_proj.weight" in self.source.tensors
        v_all = self.get("self_attn.v_proj.weight") if own_values else k_all
        heads, kv_heads = len(q_all) // d, len(k_all) // d
        h = [self.norm(row, "input_layernorm") for row in x]
        result = x.copy()
        for t in range(len(x)):
            mixed = []
            first = max(0, t - self.c["sliding_window"] + 1) if self.sliding else 0
            for head in range(heads):
                q = self.norm(q_all[head * d : head * d + d] @ h[t], "self_attn.q_norm")
                q = self.rotate(q, t)
                key_head = head // (heads // kv_heads)
                rows = slice(key_head * d, key_head * d + d)
                scores, values = [], []
                for s in range(first, t + 1):
                    k = self.norm(k_all[rows] @ h[s], "self_attn.k_norm")
                    scores.append(float(q @ self.rotate(k, s)))
                    values.append(self.norm(v_all[rows] @ h[s], None))
                share = np.exp(np.array(scores) - max(scores))
                share /= share.sum()
                mixed.append(sum(p * v for p, v in zip(share, values, strict=True)))
            given = self.get("self_attn.o_proj.weight") @ np.concatenate(mixed)
            result[t] += self.norm(given, "post_attention_layernorm")
        return result

    def routing(self, x: Array) -> dict[int, float]:
        """Weight by chosen expert, for one position."""
        h = self.norm(x, None) * self.get("router.scale") / math.sqrt(len(x))
        logits = self.get("router.proj.weight") @ h
        p = [math.exp(v - max(logits)) for v in logits]
        first = sorted(range(len(p)), key=lambda e: (-p[e], e))[: self.c["top_k_experts"]]
        total = sum(p[e] for e in first)
        return {e: p[e] / total * self.get("router.per_expert_scale")[e] for e in first}

    def expert(self, x: Array, e: int) -> Array:
        h = self.norm(x, "pre_feedforward_layernorm_2")
        f = self.c["moe_intermediate_size"]
        fused = self.get("experts.gate_up_proj")[e]
        inner = [gelu(float(fused[i] @ h)) * float(fused[f + i] @ h) for i in range(f)]
        return self.get("experts.down_proj")[e] @ np.array(inner)

    def moe(self, x: Array, among: range) -> Array:
        """What some of the experts add, for one position."""
        chosen = self.routing(x)
        parts = [w * self.expert(x, e) for e, w in chosen.items() if e in among]
        return np.sum(parts, axis=0) if parts else np.zeros_like(x)

    def feed_forward(self, x: Array) -> Array:
        """The whole second half of the layer, for one position."""
        h = self.norm(x, "pre_feedforward_layernorm")
        gate, up = self.get("mlp.gate_proj.weight") @ h, self.get("mlp.up_proj.weight") @ h
        dense = self.get("mlp.down_proj.weight") @ (np.array([gelu(g) for g in gate]) * up)
        moe = self.moe(x, range(self.c["num_experts"]))
        both = self.norm(dense, "post_feedforward_layernorm_1")
        both = both + self.norm(moe, "post_feedforward_layernorm_2")
        given = self.norm(both, "post_feedforward_layernorm")
        return (x + given) * self.get("layer_scalar")[0]


def gelu(x: float) -> float:
    """The tanh form."""
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
