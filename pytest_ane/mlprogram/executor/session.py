"""A session: a program prepared once, and run many times.

Preparing resolves names to numbered slots, folds constants and `constexpr_*` weights, binds every
operation's constant parameters, and notes when each value is used for the last time. A `Replay` is
run again with other constants: only what follows from them is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor._registry import FAILURES, lookup
from pytest_ane.mlprogram.executor._steps import PreparedBlock, Values, run_all, shapes_decide
from pytest_ane.mlprogram.executor.budget import Budget, Meter, current_budget
from pytest_ane.mlprogram.executor.dtypes import Precision, converter
from pytest_ane.mlprogram.executor.interface import bind_inputs, check_interface
from pytest_ane.mlprogram.executor.ops.lists import State, States
from pytest_ane.mlprogram.executor.prepare import Preparer, dense, uses
from pytest_ane.mlprogram.executor.weights import LARGE, HalfWeight
from pytest_ane.mlprogram.records import (
    Block,
    DType,
    MLModel,
    Operation,
    StateType,
    TensorType,
    ValueType,
)

if TYPE_CHECKING:
    from pytest_ane.mlprogram.executor.ane.simulation import Computed


class Session:
    """Prepares the chosen function of a model, and runs it.

    Args:
        model: a package as `model.read_model` gives it.
        precision: `as-typed` rounds fp16 results to fp16; `float32` never rounds; `float64`
            computes all that is floating in float64.
        memory_budget: bytes of decoded weights to hold; what is beyond is decoded in every run,
            rows at a time (palettes and plain weights of 1x1 convolutions and linear layers).
            None holds them all, which is fastest for a program that is run many times.
        overrides: arrays or `StreamedWeight` in place of constants of the package, by the
            operations of the model that yield them.
        budget: memory, time and turns of loops that preparing and each call may take; None for
            the process's own, `current_budget()`.
        arithmetic: `typed` computes in float32 and rounds as the program's types say; `ane` as the
            ANE of M4 and later does (h16+), where that is known.
        scale_after: with arithmetic `ane`, sum products of quantized weights' codes, and scale the
            rounded sum by row. One output was recorded so (M5); for the rest it is inferred.

    Attributes:
        block: the steps of a run.
        template: values of all slots before the first step: constants where needed, else None.
        slots: slots of the outermost block's values by name.
    """

    def __init__(
        self, model: MLModel, precision: Precision = "as-typed", memory_budget: int | None = None,
        overrides: Mapping[Operation, Any] | None = None, budget: Budget | None = None,
        arithmetic: Arithmetic = "typed", scale_after: bool = False,
    ) -> None:  # fmt: skip
        _check_options(precision, arithmetic, scale_after)
        self.model, self.precision, self.arithmetic = model, precision, arithmetic
        self.budget = current_budget() if budget is None else budget.settled()
        check_interface(model, precision, self.budget)
        simulation = None
        if arithmetic == "ane":  # Imported here, for compiling takes a second.
            from pytest_ane.mlprogram.executor.ane.simulation import Simulation

            makers = {out.name: op for op in model.main.walk() for out in op.outputs}
            simulation = Simulation(makers, scale_after=scale_after)
        self._simulation = simulation
        prepared = Preparer(model, precision, memory_budget, overrides, self.budget, simulation)
        self.block, self.template = prepared.block, prepared.template
        self.slots, self._constants = dict(prepared.slots), dict(prepared.constants.values)
        self._inputs = frozenset(named.name for named in model.main.inputs)
        self._features = frozenset(feature.name for feature in model.inputs)
        self._input_slots = tuple(self.slots[named.name] for named in model.main.inputs)
        self._is_static = all(shapes_decide(step) for step in self.block.steps)
        self._admitted: set[tuple[Any, ...]] = set()

    @property
    def computed(self) -> tuple[str, ...]:
        """Names of the tensors that the outermost block computes in each run, in order."""
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
        arrays = (
            value.patterns if isinstance(value, HalfWeight) else value
            for value in self._constants.values()
        )
        sizes = (array.nbytes for array in arrays if isinstance(array, np.ndarray))
        return sum(size for size in sizes if size >= LARGE)

    @property
    def rule_shares(self) -> RuleShares | None:
        """By which rules all runs so far computed; None with arithmetic `typed`."""
        return self._simulation.shares if self._simulation else None

    def watch(self, watch: Callable[[Computed], None]) -> None:
        """With arithmetic `ane`, call this after each run of an operation that has a rule."""
        if self._simulation is not None:
            self._simulation.watch = watch

    def known(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Of what a caller has ready, the inputs that the program takes."""
        if inputs.keys() <= self._features:
            return inputs
        return {name: x for name, x in inputs.items() if name in self._features}

    def make_state(self) -> States:
        """Fresh states, all zero, to be passed to `predict` again and again."""
        named = ((each.name, each.type) for each in self.model.main.inputs)
        kinds = {name: kind.wrapped for name, kind in named if isinstance(kind, StateType)}
        return States({name: State(kind, self.precision) for name, kind in kinds.items()})

    def predict(
        self, inputs: Mapping[str, Array], state: States | None = None,
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Run once.

        Args:
            inputs: every declared input by name, of the declared type and an allowed shape.
            state: what `make_state` gave; read and written. A model with states needs it.
            outputs: names to return, intermediates of the outermost block too; None for the
                declared outputs.

        Returns:
            Arrays by name; fp16 tensors as float32 holding fp16 numbers. A classifier's label and
            probabilities come as text or number, and dictionary.
        """
        names, keep = self._declared if outputs is None else self._chosen(outputs)
        with np.errstate(all="ignore"):
            values = self.table(inputs, state)
            case = (keep, *[getattr(values[slot], "shape", ()) for slot in self._input_slots])
            if case in self._admitted:
                self.block.run(values, keep)
            else:
                self.block.run(values, keep, Meter(self.budget, lambda: values))
                if self._is_static:
                    self._admitted.add(case)
        return {name: self.result(name, values) for name in names}

    def predict_all(
        self, inputs: Sequence[Mapping[str, Array]],
        states: Sequence[States | None] | None = None, outputs: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Run once on each of several inputs, all of them op by op.

        A weight beyond the memory budget is decoded once for all, so that many inputs cost little
        more than a single one. Arguments and results are those of `predict`, one for each input.
        Inputs that share a state must not be in one call.
        """
        names, keep = self._declared if outputs is None else self._chosen(outputs)
        states = [None] * len(inputs) if states is None else states
        tables = [self.table(x, state) for x, state in zip(inputs, states, strict=True)]
        run_all(self.block, tables, keep, self.budget)
        return [{name: self.result(name, values) for name in names} for values in tables]

    def _chosen(self, outputs: Sequence[str]) -> tuple[tuple[str, ...], frozenset[int]]:
        names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        return names, frozenset(self.slots[name] for name in names if name in self.slots)

    @cached_property
    def _declared(self) -> tuple[tuple[str, ...], frozenset[int]]:
        return self._chosen(self.model.main.block.outputs)

    def table(self, inputs: Mapping[str, Array], state: States | None = None) -> Values:
        """Values of all slots before the first step: constants, inputs and states."""
        values = list(self.template)
        for name, array in bind_inputs(self.model, inputs, self.precision).items():
            values[self.slots[name]] = array
        for name, tensor in self._check_states(state).items():
            values[self.slots[name]] = tensor
        return values

    @cached_property
    def _types(self) -> dict[str, ValueType]:
        function = self.model.main
        named = [*function.inputs, *(o for op in function.block.operations for o in op.outputs)]
        return {n.name: n.type for n in named}

    def _check_states(self, states: States | None) -> States:
        """The states, which are to be those that the model declares."""
        declared = [f.name for f in self.model.states]
        own, given = (", ".join(names or ()) or "none" for names in (declared, states))
        if declared and states is None:
            says = f"the model keeps states ({own}); pass what make_state() gives"
            raise ExecutionError(f"{self.model.path}: {says}.")
        states = States() if states is None else states
        if set(states) != set(declared):
            says = f"states {given} were given, the model's are {own}"
            raise ExecutionError(f"{self.model.path}: {says}.")
        return states

    def result(self, name: str, values: Values) -> Any:
        """A value by name after a run, an array that shares nothing with the session."""
        if name in self._constants:
            convert = converter(self._types[name], self.precision, moves=True)
            value = convert(dense(self._constants[name]))
        elif name in self.slots:
            value = values[self.slots[name]]
        else:
            known = f"outputs are: {', '.join(self.model.main.block.outputs)}; every other value"
            says = f"no value {name!r}; {known} of the outermost block may be named too"
            raise ExecutionError(f"{self.model.path}: {says}.")
        if not isinstance(value, (np.ndarray, np.generic)):
            return value
        # Of results inside, coremltools declares wrong shapes, as of `select` over a flexible axis.
        kind = self._types.get(name) if name in self.model.main.block.outputs else None
        if isinstance(kind, TensorType) and not _fits(np.shape(value), kind):
            says = f"came out with shape {list(np.shape(value))}, the program declares {kind}"
            raise ExecutionError(f"{self.model.path}: {name!r} {says}.")
        shared = name in self._constants or name in self._inputs or not value.flags.writeable
        return np.array(value) if shared else np.asarray(value)


def _fits(shape: tuple[int, ...], kind: TensorType) -> bool:
    return len(kind.shape) == len(shape) and all(
        d is None or d == n for d, n in zip(kind.shape, shape, strict=True)
    )


def _check_options(precision: str, arithmetic: str, scale_after: bool) -> None:
    kinds = (("precision", precision, Precision), ("arithmetic", arithmetic, Arithmetic))
    for name, value, kind in kinds:
        if value not in get_args(kind):
            raise ExecutionError(f"{name} {value!r} is none of {', '.join(get_args(kind))}.")
    if arithmetic == "ane" and precision != "as-typed":
        says = f"rounds as the ANE does, so it excludes precision {precision!r}; use 'as-typed'"
        raise ExecutionError(f"arithmetic 'ane' {says}.")
    if scale_after and arithmetic != "ane":
        says = "says where the ANE scales sums, so it needs arithmetic 'ane'"
        raise ExecutionError(f"scale-after {says}.")


def eval_op(name: str, *, opset: str = "iOS18", **parameters: Any) -> Any:
    """Run one operation without a program: `eval_op("softmax", x=x, axis=-1)`.

    fp16 arrays are computed in float32, others in their own types; nothing is rounded.
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


class Replay:
    """A session's run on several inputs that keeps every value."""

    def __init__(self, session: Session, inputs: Sequence[Mapping[str, Array]]) -> None:
        self.session = session
        self._keep = frozenset(range(len(session.template)))
        self._tables = [session.table(x) for x in inputs]
        run_all(session.block, self._tables, self._keep, session.budget)

    def outputs(self) -> list[dict[str, Any]]:
        """The declared outputs by name, for each of the inputs."""
        return [_outputs(self.session, values) for values in self._tables]

    def variant(self, session: Session, changed: Collection[str]) -> list[dict[str, Any]]:
        """The declared outputs of another session of the same model, prepared in the same way."""
        names = reached(session.model.main.block, changed)
        slots = {slot for name, slot in session.slots.items() if name in names}
        steps = [s for s in session.block.steps if any(slot in slots for slot, _ in s.outputs)]
        pairs = [zip(values, session.template, strict=True) for values in self._tables]
        tables = [[v if constant is None else constant for v, constant in pair] for pair in pairs]
        run_all(PreparedBlock((), tuple(steps), ()), tables, self._keep, session.budget)
        return [_outputs(session, values) for values in tables]


def reached(block: Block, changed: Collection[str]) -> set[str]:
    """All names that follow from those that changed, and these themselves."""
    names = set(changed)
    for op in block.operations:
        if not names.isdisjoint(uses(op)):
            names.update(out.name for out in op.outputs)
    return names


def run_step(session: Session, index: int, tables: Sequence[Values]) -> None:
    """Run one step of a session on several tables of values, and keep its results."""
    step = session.block.steps[index]
    keep = frozenset(slot for slot, _ in step.outputs)
    run_all(PreparedBlock((), (step,), ()), tables, keep, session.budget)


def _outputs(session: Session, values: Values) -> dict[str, Any]:
    return {name: session.result(name, values) for name in session.model.main.block.outputs}
