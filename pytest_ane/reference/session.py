"""A session: a program prepared once, and run many times.

Preparing resolves names to numbered slots, folds constants and `constexpr_*` weights, binds every
operation's constant parameters, and notes when each value is used for the last time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import DType, MLModel, Operation, StateType, TensorType, ValueType
from pytest_ane.reference.dtypes import Precision
from pytest_ane.reference.folding import dense
from pytest_ane.reference.halves import HalfWeight
from pytest_ane.reference.interface import Binder
from pytest_ane.reference.lockstep import run_all
from pytest_ane.reference.prepare import Preparer
from pytest_ane.reference.registry import FAILURES, lookup
from pytest_ane.reference.state import State, States
from pytest_ane.reference.steps import Values, settled
from pytest_ane.reference.weights import SMALLEST

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
        given: constants by the operations of the model that yield them, arrays or
            `StreamedWeight`, in place of what the package holds.

    Attributes:
        plan: the steps of a run.
        template: what each slot holds before the first one.
        slots: slots of the outermost block's values by name.

    Raises:
        ExecutionError: an operation is not implemented, or a constant cannot be computed.
    """

    def __init__(
        self,
        model: MLModel,
        precision: Precision = "as-typed",
        memory_budget: int | None = None,
        given: Mapping[Operation, Any] | None = None,
    ) -> None:
        check_options(model, precision, memory_budget)
        self.model = model
        self.precision = precision
        prepared = Preparer(model, precision, memory_budget, given)
        self.plan, self.template = prepared.plan, prepared.template
        self.slots, self._constants = dict(prepared.slots), dict(prepared.constants.values)
        self._inputs = frozenset(named.name for named in model.main.inputs)
        self._states = frozenset(feature.name for feature in model.states)
        self._bind = Binder(model, precision)

    @property
    def computed(self) -> tuple[str, ...]:
        """Names of the tensors that the outermost block computes anew in each run, in order."""
        return tuple(
            out.name
            for op in self.model.main.block.operations
            for out in op.outputs
            if out.name not in self._constants
            and isinstance(out.type, TensorType)
            and out.type.dtype is not DType.STRING
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the large constants that are held, as they are held: in fp16 or decoded."""
        held = (
            value.patterns if isinstance(value, HalfWeight) else value
            for value in self._constants.values()
        )
        sizes = (value.nbytes for value in held if isinstance(value, np.ndarray))
        return sum(size for size in sizes if size >= SMALLEST)

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
        names, keep = self._declared if outputs is None else self._wanted(outputs)
        with np.errstate(all="ignore"):
            values = self.table(inputs, state)
            self.plan.run(values, keep)
        return {name: self.result(name, values) for name in names}

    def predict_all(
        self,
        inputs: Sequence[Mapping[str, Array]],
        states: Sequence[States | None] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Run once on each of several inputs, all of them op by op.

        A weight beyond the memory budget is decoded once for all, so that many inputs cost little
        more than one. Arguments and results as in `predict`, one for each input; inputs that share
        a state must not be in one call.
        """
        names, keep = self._declared if outputs is None else self._wanted(outputs)
        given = [None] * len(inputs) if states is None else states
        with np.errstate(all="ignore"):
            tables = [self.table(x, state) for x, state in zip(inputs, given, strict=True)]
            run_all(self.plan, tables, keep)
        return [{name: self.result(name, values) for name in names} for values in tables]

    def _wanted(self, outputs: Sequence[str]) -> tuple[tuple[str, ...], frozenset[int]]:
        """Names of results, and the slots of them that are computed."""
        names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        return names, frozenset(self.slots[name] for name in names if name in self.slots)

    @cached_property
    def _declared(self) -> tuple[tuple[str, ...], frozenset[int]]:
        return self._wanted(self.model.main.block.outputs)

    def table(self, inputs: Mapping[str, Array], state: States | None = None) -> Values:
        """What each slot holds before the first operation."""
        values = list(self.template)
        for name, array in self._bind(inputs).items():
            values[self.slots[name]] = array
        for name, part in self._bound_states(state).items():
            values[self.slots[name]] = part
        return values

    @cached_property
    def _types(self) -> dict[str, ValueType]:
        function = self.model.main
        named = [*function.inputs, *(o for op in function.block.operations for o in op.outputs)]
        return {n.name: n.type for n in named}

    def _bound_states(self, state: States | None) -> States:
        if isinstance(state, States) and state.data.keys() == self._states:
            return state
        wanted = [f.name for f in self.model.states]
        if wanted and state is None:
            raise ExecutionError(
                f"{self.model.path}: the model keeps states ({', '.join(wanted)}); "
                "pass what make_state() gives."
            )
        given = States() if state is None else state
        if not isinstance(given, States):
            raise ExecutionError(
                f"{self.model.path}: state is of type {type(state).__name__}; pass what "
                "make_state() gives."
            )
        if set(given) != set(wanted):
            raise ExecutionError(
                f"{self.model.path}: states {', '.join(given) or 'none'} were given, the model's "
                f"are {', '.join(wanted) or 'none'}."
            )
        return given

    def result(self, name: str, values: Values) -> Any:
        """A value by name after a run, held against its declared type."""
        if name in self._constants:
            found = settled(dense(self._constants[name]), self._types[name], self.precision, True)
        elif name in self.slots:
            found = values[self.slots[name]]
        else:
            raise ExecutionError(
                f"{self.model.path}: no value {name!r}; outputs are: "
                f"{', '.join(self.model.main.block.outputs)}; every other value of the outermost "
                "block may be named too."
            )
        if not isinstance(found, (np.ndarray, np.generic)):
            return found
        self._check_shape(name, np.shape(found))
        shared = name in self._constants or name in self._inputs or not found.flags.writeable
        return np.array(found) if shared else np.asarray(found)

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Hold a result against its declared type: another shape means a damaged program."""
        kind = self._types.get(name)
        if not isinstance(kind, TensorType):
            return
        fits = len(kind.shape) == len(shape) and all(
            d is None or d == n for d, n in zip(kind.shape, shape, strict=True)
        )
        if not fits:
            raise ExecutionError(
                f"{self.model.path}: {name!r} came out with shape {list(shape)}, the program "
                f"declares {kind}."
            )


def check_options(model: object, precision: str, memory_budget: object) -> None:
    """Refuse what a session cannot be opened with.

    Raises:
        ExecutionError: one sentence with what is accepted.
    """
    if not isinstance(model, MLModel):
        raise ExecutionError(
            f"a session needs a model, not {type(model).__name__}; pass read_model(path)."
        )
    if precision not in get_args(Precision):
        raise ExecutionError(
            f"precision {precision!r} is none of {', '.join(get_args(Precision))}."
        )
    whole = isinstance(memory_budget, int) and memory_budget >= 0
    if memory_budget is not None and not whole:
        raise ExecutionError(f"memory_budget {memory_budget!r} is no number of bytes.")


def eval_op(name: str, *, opset: str = "iOS18", **parameters: Any) -> Any:
    """Run one operation without a program: `eval_op("softmax", x=x, axis=-1)`.

    fp16 arrays are computed in float32, others in their own types; nothing is rounded.

    Raises:
        ExecutionError: the operation is not implemented, or fails on these parameters.
    """
    compute = lookup(name, opset).compute
    try:
        with np.errstate(all="ignore"):
            return compute(**{key: _widened(value) for key, value in parameters.items()})
    except FAILURES as error:
        raise ExecutionError(f"{name} fails: {error}.") from error


def _widened(value: Any) -> Any:
    half = isinstance(value, np.ndarray) and value.dtype == np.float16
    return value.astype(np.float32) if half else value
