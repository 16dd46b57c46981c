"""A record of every gate, and what the judges make of it."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

from pydantic import TypeAdapter

from pytest_ane.gates import behaviour, compression, fidelity, placement
from pytest_ane.gates.behaviour.measure import PromptResult
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.fidelity import Comparison, Fidelity
from pytest_ane.gates.placement.plans import Message, Plan, PlannedFunction, PlannedOperation, Tally
from pytest_ane.gates.verdict import Verdict
from pytest_ane.make import Census, Distortion
from pytest_ane.manifest import Compression
from pytest_ane.manifest.policy import (
    BehaviourPolicy,
    CompressionPolicy,
    FidelityPolicy,
    PlacementPolicy,
)
from pytest_ane.mlprogram.metrics.logits import Likeliest, Position
from pytest_ane.mlprogram.weights import Stage, Weight
from pytest_ane.probes.exact_chain import Head, ShardAlone
from pytest_ane.records.record import Record

ENVIRONMENT = {
    "ane_cores": "16",
    "backend": "coreml",
    "chip": "Apple M4 Max",
    "compute_units": "CPU_AND_NE",
    "coremltools": "9.0",
    "os": "macOS 26.1",
    "os_build": "25B78",
    "devices": "CPU, GPU, ANE",
    "translated": "no",
    "virtual": "no",
}
PLAN = Plan(
    "coremltools",
    (
        PlannedFunction(
            "main",
            (
                PlannedOperation("w", "const"),
                PlannedOperation("y", "conv", "ANE", ("CPU", "GPU", "ANE"), 0.875, (("loop", 0),)),
                PlannedOperation("z", "cast", "CPU", boundary=True, extra={"note": ["kept", 1]}),
            ),
        ),
    ),
    tallies=(Tally("conv", 2, 2), Tally(None, 3, 3)),
    messages=(Message("a line", "It says so.", False, 7),),
    compute_units="CPU_AND_NE",
    ane_cores=16,
)
COMPRESSION = CompressionMeasurement(
    Census(
        (
            Weight(
                "q_proj_weight",
                (576, 576, 1, 1),
                166_464,
                4,
                (Stage("constexpr_lut_to_dense", 4, 18),),
                op_types=("conv",),
            ),
            Weight("mask", (64, 64, 1, 1), 5_000, 16, (Stage("constexpr_sparse_to_dense", 16),),
                   0.5, ("conv",)),
            Weight("norm_weight", (576,), 1152, 16),
        )
    ),
    700_000,
    ("norm_weight: left as it is.",),
    (Distortion("q_proj_weight", 12.5, 3000.0), Distortion("mask", 0.0, 7.0)),
)  # fmt: skip
FIDELITY = Fidelity(
    (
        Comparison("gaussian", "gaussian T=2 #0", "y", 2, 4.25, (0.999, 0.998), (0, 1), (), (),
                   1.0, 0.125, relative=(0.02, 0.01)),
        Comparison("captured", "captured chat T=4", "y", 4, 21953.4, (0.9, math.nan), (0, 3),
                   (1,), (2,), 0.875, math.inf, relative=(0.5, math.nan)),
    ),
    True,
    {"backend": "coreml"},
    interface=("input x: fp32 in place of fp16",),
    same_module=True,
)  # fmt: skip
BEHAVIOUR = behaviour.Behaviour(
    (
        PromptResult(
            "facts",
            (
                Position(0.5, 9.0, False, 700, 0.75, 1.25, 4.5, 2.25),
                Position(0.999, 0.01, True, 0, math.nan, 0.0),
            ),
            (5, 6),
            (5, 7),
            (4.0, 0.25),
            " a\x1b b",
            " a c",
            (Likeliest((5, 9), (-0.1054, -2.9957), -2.9957), Likeliest((), (), math.nan)),
            Head(0.5, 0.125, math.nan),
        ),
    ),
    (ShardAlone("L00", "block", 0.05, 0.9991), ShardAlone("L01", "block", math.inf, math.nan)),
    {"backend": "coreml"},
    49_152,
)
MEASURED: dict[str, Any] = {
    "placement": PLAN,
    "compression": COMPRESSION,
    "fidelity": FIDELITY,
    "behaviour": BEHAVIOUR,
}
ASKED = [
    {"method": "palettize", "nbits": 4, "group_size": 32, "weight_threshold": 0},
    {"method": "linear", "dtype": "int4", "granularity": "per_block", "weight_threshold": 0},
    {"method": "prune", "n_m_ratio": [3, 4], "weight_threshold": 0},
    {"method": "prune", "target_sparsity": 0.5, "weight_threshold": 0},
]


def record(gate: str, **changes: Any) -> Record:
    """What a Mac records of `smollm2:L01`, or of the whole model."""
    fields: dict[str, Any] = {
        "gate": gate,
        "subject": "smollm2" if gate == "behaviour" else "smollm2:L01",
        "files": {"L01/Manifest.json": "0" * 64, "L01/Data/weights/weight.bin": "1f" * 32},
        "environment": ENVIRONMENT,
        "asked": {"probes": [{"kind": "gaussian", "count": 2, "seed": 0}], "reference": "float32"},
        "time": datetime(2026, 11, 21, 16, 5, 59, tzinfo=timezone.utc),
        "measurement": MEASURED[gate],
    }
    return Record(**{**fields, **changes})


def judged(found: Any) -> list[Verdict]:
    """The verdicts of a measurement under several policies."""
    if isinstance(found, Plan):
        return [placement.judge(found, PlacementPolicy(), "m:L01")]
    if isinstance(found, Fidelity):
        mild = FidelityPolicy(min_cosine=0.5)
        return [fidelity.judge(found, policy, "m:L01") for policy in (FidelityPolicy(), mild)]
    if isinstance(found, behaviour.Behaviour):
        return [behaviour.judge(found, BehaviourPolicy(), "m")]
    policies = [CompressionPolicy(), CompressionPolicy(max_bytes=10, min_ratio=3.5)]
    asked = [TypeAdapter(Compression).validate_python(one) for one in ASKED]
    return [
        compression.judge(found, policy, "m:L01", one)
        for one in [None, *asked]
        for policy in policies
    ]
