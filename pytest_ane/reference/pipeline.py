"""Pipelines: sessions run one after the other, outputs of one the inputs of the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import Feature, MLModel, Pipeline
from pytest_ane.reference.dtypes import Arithmetic, Precision
from pytest_ane.reference.images import to_pixels
from pytest_ane.reference.interface import check_names, present
from pytest_ane.reference.session import Session
from pytest_ane.reference.state import States


class PipelineSession:
    """Runs the models of a pipeline, as `Session` runs one.

    Args:
        model: a pipeline as `mil.read_any` gives it.
        precision: that of `Session`, for all parts.
        arithmetic: likewise.

    Raises:
        ExecutionError: a part cannot be prepared.
    """

    def __init__(
        self,
        model: Pipeline,
        precision: Precision = "as-typed",
        arithmetic: Arithmetic = "typed",
    ) -> None:
        self.model = model
        self.precision = precision
        self.parts = tuple(Session(part, precision, arithmetic=arithmetic) for part in model.parts)

    def make_state(self) -> States:
        """Empty: a pipeline has no states."""
        return States()

    def predict(
        self,
        inputs: Mapping[str, Any],
        state: States | None = None,
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Run every part once; a part takes the outputs of those before it by name.

        Args:
            inputs: every declared input by name, of the declared type and an allowed shape.
            state: None, or what `make_state` gave.
            outputs: names of any part's declared outputs; None for the pipeline's own.

        Raises:
            ExecutionError: an input is missing, unknown, or of another dtype, rank or shape.
        """
        del state
        self._check(inputs)
        values = dict(inputs)
        results: dict[str, Any] = {}
        for part in self.parts:
            features = part.model.inputs
            outcome = part.predict({f.name: values[f.name] for f in features if f.name in values})
            results |= outcome
            values |= {f.name: _passed(part.model, f, outcome[f.name]) for f in part.model.outputs}
        names = [f.name for f in self.model.outputs] if outputs is None else outputs
        for name in names:
            if name not in results:
                raise ExecutionError(
                    f"{self.model.path}: no value {name!r}; outputs are: {', '.join(results)}."
                )
        return {name: results[name] for name in names}

    def _check(self, inputs: Mapping[str, Any]) -> None:
        check_names(self.model.path, self.model.inputs, inputs)
        for feature in self.model.inputs:
            if feature.name not in inputs and not feature.optional:
                raise ExecutionError(
                    f"{self.model.path}: input {feature.name!r} is missing; "
                    f"it takes {present(feature)}."
                )


def open_session(
    model: MLModel | Pipeline,
    precision: Precision = "as-typed",
    arithmetic: Arithmetic = "typed",
) -> Session | PipelineSession:
    """The session that runs what `mil.read_any` gives.

    Raises:
        ExecutionError: as `Session`.
    """
    if isinstance(model, Pipeline):
        return PipelineSession(model, precision, arithmetic)
    return Session(model, precision, arithmetic=arithmetic)


def _passed(model: MLModel, feature: Feature, value: Any) -> Any:
    """An output in the form that a later part takes as input: an image as pixels."""
    if feature.kind != "image":
        return value
    try:
        return to_pixels(feature, value)
    except ValueError as error:
        raise ExecutionError(f"{model.path}: output {feature.name!r} has {error}.") from None
