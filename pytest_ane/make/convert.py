"""Conversion of a family's torch module to an uncompressed Core ML model."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_ane.make.coremltools_quiet import import_coremltools
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.models.families import Conversion

_TRACED = 2
"""Positions at tracing. More than one, or torch would specialise axes of length one."""

_STATES = 18
"""The first iOS whose programs have states (Core ML Tools guide, "Stateful Models")."""


def convert(conversion: Conversion, *, max_tokens: int, target: str, subject: str) -> Any:
    """Trace and convert to an ML Program in fp16 with a flexible T of 1 to `max_tokens`.

    The module is traced in the dtype of its parameters and states. fp16 is several times faster
    and leaner: the converter checks every float32 constant for overflow.

    Raises:
        BuildError: torch cannot trace the module or coremltools cannot convert it.
    """
    import numpy as np
    import torch

    if conversion.states and int(target.removeprefix("iOS")) < _STATES:
        raise BuildError(
            f"{subject} keeps states, which target = {target!r} does not have; set target = "
            f"'iOS{_STATES}' in the manifest."
        )
    ct = import_coremltools()
    _number_symbols_anew()
    dtype = _dtype(conversion.module)
    examples = tuple(
        torch.zeros([_TRACED if d == "T" else int(d) for d in port.shape], dtype=dtype)
        for port in conversion.inputs
    )
    flexible = ct.RangeDim(1, max_tokens, default=1)
    inputs = [
        ct.TensorType(
            port.name, tuple(flexible if d == "T" else d for d in port.shape), dtype=np.float16
        )
        for port in conversion.inputs
    ]
    outputs = [ct.TensorType(port.name, dtype=np.float16) for port in conversion.outputs]
    states = [
        ct.StateType(ct.TensorType(shape=port.shape, dtype=np.float16), name=port.name)
        for port in conversion.states
    ]
    try:
        with torch.no_grad():
            trace: Any = torch.jit.trace
            traced = trace(conversion.module.eval(), examples, check_trace=False)
        with _checked_once():
            converted = ct.convert(
                traced,
                inputs=inputs,
                outputs=outputs,
                states=states or None,
                convert_to="mlprogram",
                minimum_deployment_target=getattr(ct.target, target),
                compute_precision=ct.precision.FLOAT16,
                skip_model_load=True,
            )
        converted._mil_program.validate()
        # All weights would stay in memory with it, in cycles; the package on disk has them too.
        converted._mil_program = None
        del traced
        gc.collect()
        return converted
    except OSError:
        raise
    # Whatever the tracer or the converter raises, the person needs to know which shard it was.
    except Exception as error:
        cause = _not_a_number(conversion) or error
        why = " ".join(str(cause).split())
        raise BuildError(f"{subject} could not be converted: {why}") from error


@contextmanager
def _checked_once() -> Iterator[None]:
    """Let coremltools not check its program after each pass; whoever calls it checks the last.

    After each of a hundred passes it goes through the whole program, and before and after each
    pipeline it prints it for a log that nobody reads: a third of the time of converting a block.
    """
    from coremltools.converters.mil.mil import Program

    before = Program.validate, Program.__str__
    Program.validate, Program.__str__ = lambda self, **options: None, lambda self: ""
    try:
        yield
    finally:
        Program.validate, Program.__str__ = before


def _number_symbols_anew() -> None:
    """Let coremltools call the first unknown length `is0` again, as in a new process.

    It keeps a Python type for every shape that it has met. It means to count anew for each
    conversion (`_reset_conversion_state`), but resets a copy of the count; so 150 types, 2 MB, were
    kept of each shard, and collecting garbage took longer from shard to shard.
    """
    from coremltools.converters.mil.mil import program

    program.k_used_symbols.clear()
    program.k_num_internal_syms = 0


def _not_a_number(conversion: Conversion) -> str | None:
    """That a weight or state holds NaN, which the converter takes for weights that do not match."""
    module = conversion.module
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    name = next((name for name, tensor in tensors.items() if bool(tensor.isnan().any())), None)
    if name in {state.name for state in conversion.states}:
        return f"its state {name} is NaN after a call with zeros; let the module take zeros."
    return name and f"its weight {name} holds NaN; repair the source of its weights."


def _dtype(module: Any) -> Any:
    """The dtype of a module's floating parameters and buffers; float32 for one without any."""
    import torch

    tensors = (*module.parameters(), *module.buffers())
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
