"""How users call the gates; imports nothing, so that pytest can know these words early."""

from __future__ import annotations

GATE_WORDS = {
    "placement": ("residency", "plan"),
    "compression": ("palettization", "size", "weights"),
    "fidelity": ("cosine", "golden", "correctness"),
    "hazards": ("overflow",),
    "behaviour": ("golden", "prompts", "stack", "logits"),
    "throughput": ("speed", "regression"),
}
"""Other words for `-k`, `-m` and the command line, by gate; a gate needs none."""
TIMED = ("throughput",)
"""Gates whose tests are benchmarks, so that their figures depend on the machine."""
