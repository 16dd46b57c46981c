"""Pipelines: sessions run one after the other, outputs of one the inputs of the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.arrays import Array, Arrays
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.dtypes import carried
from pytest_ane.mlprogram.executor.interface import check_names, refusal, to_pixels
from pytest_ane.mlprogram.executor.ops.lists import States
from pytest_ane.mlprogram.executor.ops.sorting import select_boxes
from pytest_ane.mlprogram.executor.session import Session
from pytest_ane.mlprogram.records import Feature, MLModel, NonMaximumSuppression, Pipeline

if TYPE_CHECKING:
    from pytest_ane.mlprogram.executor.ane.simulation import Computed


class SuppressionSession:
    """Runs Core ML's own non-maximum suppression, in float64 whatever the inputs are."""

    def __init__(self, model: NonMaximumSuppression) -> None:
        self.model = model

    def predict(self, inputs: Arrays) -> dict[str, Array]:
        """Confidences `[K, C]` and boxes `[K, 4]` of those that are kept, the best first.

        Inputs are confidences `[N, C]`; boxes `[N, 4]`, each (x, y, width, height) with its centre;
        and perhaps thresholds in place of the model's own.
        """
        model = self.model
        scores = self._finite(inputs, model.confidence[0])
        boxes = self._finite(inputs, model.coordinates[0])
        of_classes = scores.ndim == 2 and scores.shape[1] == (len(model.labels) or scores.shape[1])
        if not of_classes or boxes.shape != (len(scores), 4):
            takes = f"takes confidences [N, {len(model.labels) or 'C'}] and coordinates [N, 4]"
            given = f"{list(scores.shape)} and {list(boxes.shape)}"
            raise self._error(f"{takes}, and was given {given}")
        iou = self._threshold(inputs, model.iou_input, model.iou_threshold)
        name = model.confidence_threshold_input
        least = self._threshold(inputs, name, model.confidence_threshold)
        low, high = self._rows
        most = len(scores) if high is None else high
        kept = select_boxes(boxes, scores, iou, least, most, model.per_class) if scores.size else []
        outputs = {model.confidence[1]: scores[kept], model.coordinates[1]: boxes[kept]}
        missing = max(low - len(kept), 0)
        return {f.name: np.pad(outputs[f.name], ((0, missing), (0, 0))).astype(carried(f.dtype))
                for f in model.outputs if f.name in outputs}  # fmt: skip

    @property
    def _rows(self) -> tuple[int, int | None]:
        """The fewest rows of the outputs, and the most; either output may declare them."""
        for feature in self.model.outputs:
            if feature.ranges:
                low, high = feature.ranges[0]
                if low or high is not None:
                    return low, high
            elif feature.shape:
                return feature.shape[0], feature.shape[0]
        return 0, None

    def _finite(self, inputs: Arrays, name: str) -> Array:
        values = np.asarray(inputs[name], np.float64)
        if not np.isfinite(values).all():
            raise self._error(f"was given NaN or infinite values of {name!r}, by the part before")
        return values

    def _threshold(self, inputs: Arrays, name: str, default: float) -> float:
        value = np.asarray(inputs.get(name, default), np.float64)
        if value.size != 1 or not value.item() >= 0:
            raise self._error(f"takes one number from 0 on as {name!r}, and was given {value}")
        return float(value.item())

    def _error(self, problem: str) -> ExecutionError:
        return ExecutionError(f"{self.model.path}: the suppression {problem}.")


class PipelineSession:
    """Runs the models of a pipeline, with arguments as of `Session` for all its parts."""

    def __init__(self, model: Pipeline, **options: Any) -> None:
        self.model = model
        self.parts = tuple(
            Session(part, **options) if isinstance(part, MLModel) else SuppressionSession(part)
            for part in model.parts
        )
        self._sessions = [part for part in self.parts if isinstance(part, Session)]

    @property
    def rule_shares(self) -> RuleShares | None:
        """By which rules all parts computed so far; None with arithmetic `typed`."""
        parts = [part.rule_shares for part in self._sessions if part.rule_shares]
        return sum(parts, RuleShares()) if parts else None

    def watch(self, watch: Callable[[Computed], None]) -> None:
        """As `Session.watch`, of all parts."""
        for part in self._sessions:
            part.watch(watch)

    def known(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Of what a caller has ready, the inputs that the pipeline takes."""
        names = {feature.name for feature in self.model.inputs}
        return {name: x for name, x in inputs.items() if name in names}

    def make_state(self) -> States:
        """Empty: a pipeline has no states."""
        return States()

    def predict(
        self, inputs: Mapping[str, Any], state: States | None = None,
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Run every part once, as `Session.predict`; parts take outputs of those before by name.

        `outputs` may be any part's declared ones.
        """
        del state
        check_names(self.model.path, self.model.inputs, inputs)
        for feature in self.model.inputs:
            if feature.name not in inputs and not feature.optional:
                raise refusal(self.model, feature, "is missing")
        values = dict(inputs)
        results: dict[str, Any] = {}
        for part in self.parts:
            path, features = part.model.path, part.model.inputs
            outcome = part.predict({f.name: values[f.name] for f in features if f.name in values})
            results |= outcome
            values |= {f.name: _passed(path, f, outcome[f.name]) for f in part.model.outputs}
        names = self.model.output_names if outputs is None else outputs
        if unknown := [name for name in names if name not in results]:
            says = f"no value {unknown[0]!r}; outputs are: {', '.join(results)}"
            raise ExecutionError(f"{self.model.path}: {says}.")
        return {name: results[name] for name in names}

    def predict_all(
        self, inputs: Sequence[Mapping[str, Any]],
        states: Sequence[States | None] | None = None, outputs: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Run once on each of several inputs, one after the other."""
        del states
        return [self.predict(x, outputs=outputs) for x in inputs]


def open_session(model: MLModel | Pipeline, **options: Any) -> Session | PipelineSession:
    """The session that runs what `model.read_any` gives; `options` are those of `Session`."""
    if isinstance(model, Pipeline):
        return PipelineSession(model, **options)
    return Session(model, **options)


def _passed(path: str, feature: Feature, value: Any) -> Any:
    """An output in the form that a later part takes as input: an image as pixels."""
    if feature.kind != "image":
        return value
    try:
        return to_pixels(feature, value)
    except ValueError as error:
        raise ExecutionError(f"{path}: output {feature.name!r} has {error}.") from None
