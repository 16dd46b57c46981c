"""Did the compression that was asked for happen, and is the package small enough?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_ane.gates.base import Gate, ShardContext
from pytest_ane.gates.compression.judge import figures, judge, limits, weights_table
from pytest_ane.gates.compression.measure import CompressionMeasurement, measure
from pytest_ane.gates.verdict import Figure, Limits, Verdict
from pytest_ane.manifest import GOLDEN, Model, Shard
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.mlprogram.digests import key_digest, tree_files
from pytest_ane.mlprogram.model import only_program

__all__ = ["COMPRESSION", "CompressionMeasurement", "judge", "measure", "weights_table"]


class CompressionGate(Gate[CompressionMeasurement]):
    """A census of the weights in the file, against what the manifest asks for."""

    name = "compression"
    answers = "size"
    measurement = CompressionMeasurement
    by_device = False
    static = True
    of_pipelines = False

    def question(self, subject: Shard, model: Model, source: Callable[[], str]) -> dict[str, Any]:
        """Of a package of the user's: how it was compressed, and what it is compared with."""
        asked: dict[str, Any] = {}
        if subject.artifact is None:
            return asked
        if subject.compression is not None:
            asked["compression"] = subject.compression.model_dump(mode="json")
        if subject.reference == "float32" and subject.family:
            asked["source"] = source()
        plain = subject.uncompressed or subject.reference
        if isinstance(plain, Path) and plain.suffix not in GOLDEN:
            asked["uncompressed"] = key_digest(tree_files(plain))
        return asked

    def measure(self, context: ShardContext) -> CompressionMeasurement:
        """Take the census of the artifact; nothing is run."""
        program, converted = only_program(context.program), context.converted()
        return measure(context.shard, context.artifact, program, converted)

    def judge(
        self, measurement: CompressionMeasurement, policy: CompressionPolicy, subject: Shard
    ) -> Verdict:
        """Hold every weight against what was asked for it, and the size against the budget."""
        return judge(measurement, policy, subject.qualified, subject.compression)

    def limits(self, policy: CompressionPolicy, subject: Shard) -> Limits:
        """Of bytes, of the ratio to fp16, and of weights' errors."""
        return limits(policy)

    def figures(self, measurement: CompressionMeasurement) -> tuple[Figure, ...]:
        """Bytes, the ratio to fp16, weights, and the lowest SNR of a weight."""
        return figures(measurement, {})


COMPRESSION = CompressionGate()
