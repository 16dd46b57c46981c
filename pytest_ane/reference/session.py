"""A session: a program prepared once, and run many times.

Preparing resolves names to numbered slots, folds constants and `constexpr_*` weights, binds every
operation's constant parameters, and notes when each value is used for the last time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.errors import ExecutionError
from pytest_ane.mil.records import Model, StateType, TensorType
from pytest_ane.reference.dtypes import Precision
from pytest_ane.reference.interface import bind_inputs
from pytest_ane.reference.prepare import Preparer
from pytest_ane.reference.registry import FAILURES, lookup
from pytest_ane.reference.state import State, States

Array = npt.NDArray[Any]


class Session:
    """Runs one function of a model.

    Args:
        model: a package as `mil.read_model` gives it.
        precision: `as-typed` rounds fp16 results to fp16; `float32` never rounds; `float64`
            computes all that is floating in float64.
        memory_budget: bytes of decoded weights to hold; what is beyond is decoded in every run,
            rows at a time (palettes and plain weights of 1x1 convolutions and linear layers).
            None holds them all, which is fastest for a program that is run many times.

    Raises:
        ExecutionError: an operation is not implemented, or a constant cannot be computed.
    """

    def __init__(
        self,
        model: Model,
        precision: Precision = "as-typed",
        memory_budget: int | None = None,
    ) -> None:
        self.model = model
        self.precision = precision
        prepared = Preparer(model, precision, memory_budget)
        self._plan, self._template = prepared.plan, prepared.template
        self._slots, self._constants = dict(prepared.slots), dict(prepared.constants.values)

    @property
    def computed(self) -> tuple[str, ...]:
        """Names of the tensors that the outermost block computes anew in each run, in order."""
        return tuple(
            out.name
            for op in self.model.main.block.operations
            for out in op.outputs
            if out.name not in self._constants and isinstance(out.type, TensorType)
        )

    def make_state(self) -> States:
        """Fresh states, all zero, to be passed to `predict` again and again."""
        return States(
            {
                named.name: State(named.type.wrapped, self.precision)
                for named in self.model.main.inputs
                if isinstance(named.type, StateType)
            }
        )

    def predict(
        self,
        inputs: Mapping[str, Array],
        state: States | None = None,
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Run once.

        Args:
            inputs: every declared input by name, of the declared type and an allowed shape.
            state: what `make_state` gave; read and written. A model with states needs it.
            outputs: names to return, intermediates of the outermost block too; None for the
                declared outputs.

        Returns:
            Arrays by name; fp16 tensors as float32 holding fp16 numbers. A classifier's label and
            probabilities come as text or number, and dictionary.

        Raises:
            ExecutionError: an input is missing, unknown, or of another dtype, rank or shape.
        """
        names = tuple(self.model.main.block.outputs if outputs is None else outputs)
        keep = frozenset(self._slots[name] for name in names if name in self._slots)
        values = list(self._template)
        for name, array in bind_inputs(self.model, inputs, self.precision).items():
            values[self._slots[name]] = array
        for name, part in self._bound_states(state).items():
            values[self._slots[name]] = part
        with np.errstate(all="ignore"):
            self._plan.run(values, keep)
        return {name: self._result(name, values) for name in names}

    def _bound_states(self, state: States | None) -> States:
        wanted = [f.name for f in self.model.states]
        if wanted and state is None:
            raise ExecutionError(
                f"{self.model.path}: the model keeps states ({', '.join(wanted)}); "
                "pass what make_state() gives."
            )
        given = state or States()
        if set(given) != set(wanted):
            raise ExecutionError(
                f"{self.model.path}: states {', '.join(given) or 'none'} were given, the model's "
                f"are {', '.join(wanted) or 'none'}."
            )
        return given

    def _result(self, name: str, values: list[Any]) -> Any:
        if name in self._constants:
            return np.asarray(self._constants[name])
        if name not in self._slots:
            raise ExecutionError(
                f"{self.model.path}: no value {name!r}; outputs are: "
                f"{', '.join(self.model.main.block.outputs)}."
            )
        found = values[self._slots[name]]
        return np.asarray(found) if isinstance(found, (np.ndarray, np.generic)) else found


def eval_op(name: str, *, opset: str = "iOS18", **parameters: Any) -> Any:
    """Run one operation without a program, in float32: `eval_op("softmax", x=x, axis=-1)`.

    Raises:
        ExecutionError: the operation is not implemented, or fails on these parameters.
    """
    compute = lookup(name, opset).compute
    try:
        with np.errstate(all="ignore"):
            return compute(**parameters)
    except FAILURES as error:
        raise ExecutionError(f"{name} fails: {error}.") from error
