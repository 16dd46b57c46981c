"""The first operation that makes a NaN, an infinity, or what fp16 cannot hold, and of what.

The program runs as its types say and in float32, call by call. From its outputs the way leads back
through operands; of the operations on it the first counts whose result is not finite though its
operands are. A mask of -inf that softmax takes away, so that both runs agree, is not on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.mlprogram.arrays import Arrays
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.prepare import uses
from pytest_ane.mlprogram.records import MLModel, Operation, Ref
from pytest_ane.probes.cases import Case, CaseState

_APART = 0.05
"""Relative difference from which a result of the two runs differs."""
_BINARY = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} times {}", "real_div": "{} / {}",
           "pow": "{} to the power of {}"}  # fmt: skip
_ALONG = ("softmax", "cumsum", "l2_norm", "layer_norm", "instance_norm")
"""Operations whose result has the shape of `x`, and yet depends on more than one element."""


def first_overflow(model: MLModel, cases: Sequence[Case]) -> str:
    """The first such operation on the first case that has one, in words; empty where none has.

    `fp16 overflows in square_0 (11.8 million): 3,436 squared`, or `mul masked gives NaN: mask
    constant -inf times 0`.
    """
    sessions = Session(model), Session(model, "float32")
    for case in cases:
        states = [CaseState(CpuRunner(session), case) for session in sessions]
        for turn, call in enumerate(case.calls):
            typed, exact = (
                session.predict(session.known(call), each.before(turn), session.computed)
                for session, each in zip(sessions, states, strict=True)
            )
            if words := _Walk(sessions[0], call, typed, exact).first():
                return words
    return ""


class _Walk:
    """The results of one call as typed and in float32, and the way back through them."""

    def __init__(
        self, session: Session, inputs: Arrays, typed: Mapping[str, Any], exact: Mapping[str, Any]
    ) -> None:
        self._session, self._inputs, self._computed = session, inputs, typed.keys()
        self._typed, self._exact = _floats(typed), _floats(exact)
        block = session.model.main.block
        numbered = enumerate(block.operations)
        self._makers = {out.name: (i, op) for i, op in numbered for out in op.outputs}
        written = (n for n, (_, op) in self._makers.items() if op.op == "coreml_update_state")
        self._ends = [*block.outputs, *written]

    def first(self) -> str:
        """What the first operation on the way made, in words; else empty."""
        names = [name for name in self._way() if self._broken(name).any()]
        for name in sorted(names, key=lambda name: self._makers[name][0]):
            if not any(self._broken(n).any() for n in self._operands(name)):
                return self._words(name)
        return ""

    def _way(self) -> Iterator[str]:
        """Results that lead to an end, but for those not finite that change nothing there."""
        seen, ahead = set[str](), [name for name in self._ends if name in self._typed]
        while ahead:
            if (name := ahead.pop()) not in seen:
                seen.add(name)
                yield name
                changed = self._differs(name)
                ahead += (n for n in self._operands(name) if changed or not self._broken(n).any())

    def _operands(self, name: str) -> list[str]:
        return [n for n in uses(self._makers[name][1]) if n in self._typed]

    def _differs(self, name: str) -> bool:
        if self._broken(name).any():
            return True
        a, b = self._typed[name], self._exact[name]
        finite = np.isfinite(a) & np.isfinite(b)
        a, b = (np.where(finite, x, 0.0).astype(np.float64) for x in (a, b))
        return float(np.linalg.norm(a - b)) > _APART * float(np.linalg.norm(b))

    def _broken(self, name: str) -> Any:
        """Where a result is NaN, or infinite though not in float32, or made of finite numbers."""
        a = self._typed[name]
        if np.isfinite(a).all():
            return np.zeros(a.shape, bool)
        same = a == self._exact[name]
        if same.any() and all(np.isfinite(x).all() for x in self._values(name).values()):
            same = np.zeros(a.shape, bool)
        return ~np.isfinite(a) & ~same

    def _values(self, name: str) -> dict[str, Any]:
        """The floating-point arrays that an operation takes, by parameter."""
        taken = {}
        for parameter, arguments in self._makers[name][1].inputs.items():
            for i, argument in enumerate(arguments):
                value = self._value(argument)
                if value is not None and np.asarray(value).dtype.kind == "f":
                    taken[f"{parameter}{i or ''}"] = np.asarray(value, np.float64)
        return taken

    def _value(self, argument: Any) -> Any:
        if not isinstance(argument, Ref):
            return load(self._session.model, argument)
        name = argument.name
        for known in (self._typed, self._inputs):
            if name in known:
                return known[name]
        if name in self._computed or name not in self._makers:
            return None
        with suppress(LookupError):  # No constant, but a list or a state.
            return self._session.result(name, [])
        return None

    def _words(self, name: str) -> str:
        typed, exact, op = self._typed[name], self._exact[name], self._makers[name][1]
        size = np.nan_to_num(np.abs(exact.astype(np.float64)), nan=np.inf)
        places = np.where(self._broken(name), size, -1.0)
        place = np.unravel_index(int(places.argmax()), places.shape)
        value, right = float(typed[place]), float(exact[place])
        how = self._how(op, name, place)
        if math.isfinite(right) and not math.isnan(value):
            return f"fp16 overflows in {name} ({_size(right)}): {how}"
        return f"{op.op} {name} gives {'NaN' if math.isnan(value) else 'infinity'}: {how}"

    def _how(self, op: Operation, name: str, place: tuple[Any, ...]) -> str:
        """`3,436 squared`, `mask constant -inf times 0`, `reduce_sum of x`."""
        values, shape = self._values(name), self._typed[name].shape
        names = {p: [a.name for a in group if isinstance(a, Ref)] for p, group in op.inputs.items()}

        def at(parameter: str) -> str:
            number = float(np.broadcast_to(values[parameter], shape)[place])
            known = next(iter(names[parameter]), "")
            constant = not math.isfinite(number) and known not in self._typed
            what = f"{known} constant " if constant and known and known not in self._inputs else ""
            return f"{what}{number:,.6g}"

        try:
            if op.op == "square" or (op.op == "mul" and names["x"] == names["y"] != []):
                return f"{at('x')} squared"
            if op.op in _BINARY:
                return _BINARY[op.op].format(at("x"), at("y"))
            rest = (x.size == 1 for parameter, x in values.items() if parameter != "x")
            if op.op not in _ALONG and values["x"].shape == shape and all(rest):
                return f"{op.op} of {at('x')}"
        except (KeyError, ValueError):
            pass
        ready = {*self._typed, *self._inputs}
        of = ", ".join(n for group in names.values() for n in group if n in ready)
        for parameter, x in values.items():
            if np.isinf(x).any():
                name = next(iter(names[parameter.rstrip("0123456789")]), parameter)
                of += "" if name in ready else f" and {name}"
                return f"{op.op} of {of}, which holds {float(x[np.isinf(x)].flat[0]):g}"
        return f"{op.op} of {of or 'its input'}"


def _floats(results: Mapping[str, Any]) -> dict[str, Any]:
    arrays = {name: np.asarray(x) for name, x in results.items()}
    return {name: x for name, x in arrays.items() if x.dtype.kind == "f"}


def _size(value: float) -> str:
    for unit, word in ((1e9, "billion"), (1e6, "million")):
        if unit <= abs(value) < 1000 * unit:
            return f"{value / unit:.3g} {word}"
    return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.3g}"
