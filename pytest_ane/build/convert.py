"""Conversion of a family's torch module to an uncompressed Core ML model."""

from __future__ import annotations

from typing import Any

from pytest_ane.build.quiet import import_coremltools
from pytest_ane.errors import BuildError
from pytest_ane.families import Conversion

_TRACED = 2
"""Positions at tracing. More than one, or torch would specialise axes of length one."""


def convert(conversion: Conversion, *, max_tokens: int, target: str, subject: str) -> Any:
    """Trace and convert to an ML Program in fp16 with a flexible T of 1 to `max_tokens`.

    The module is traced in the dtype of its parameters and states. fp16 is several times faster
    and leaner: the converter checks every float32 constant for overflow.

    Raises:
        BuildError: torch cannot trace the module or coremltools cannot convert it.
    """
    import numpy as np
    import torch

    ct = import_coremltools()
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
        return ct.convert(
            traced,
            inputs=inputs,
            outputs=outputs,
            states=states or None,
            convert_to="mlprogram",
            minimum_deployment_target=getattr(ct.target, target),
            compute_precision=ct.precision.FLOAT16,
            skip_model_load=True,
        )
    except OSError:
        raise
    # Whatever the tracer or the converter raises, the person needs to know which shard it was.
    except Exception as error:
        raise BuildError(f"{subject} could not be converted: {error}") from error


def _dtype(module: Any) -> Any:
    """The dtype of a module's floating parameters and buffers; float32 for one without any."""
    import torch

    tensors = (*module.parameters(), *module.buffers())
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
