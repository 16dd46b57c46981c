"""Operations that the ANE composes of tables and sums, whose cliffs follow from their parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.executor.ane.activations import biased, exp, log
from pytest_ane.mlprogram.executor.ane.fp16 import r16
from pytest_ane.mlprogram.executor.ane.grades import Grade, rule


@rule(Grade.INFERRED, "softplus")
def softplus(x: Any) -> FloatArray:
    """`log(exp(x) + 1)`, the 1 as an accumulator's bias: infinite from exp(x) + 1 >= 32768.

    So it falls to 0 from x = 10.3984. Grade: inferred from the rules of its parts; predicts the
    recorded cliff at about 10.4 (apple/coremltools issue 2687, M3 Max, confirmed on M4), while
    fp16's own limit would put it at 11.09.
    """
    return log(biased(exp(x), 1.0))


@rule(Grade.INFERRED, "reduce_log_sum_exp")
def logsumexp(x: Any, axes: Any = None, keep_dims: bool = False) -> FloatArray:
    """`log(sum of exp(x))` with the sum in fp16, infinite beyond 65504: log of that is 0.

    Grade: inferred. 32 equal channels fall to 0 from 7.6313, as recorded (apple/coremltools issue
    2690, M3 Max); in a Q15.16 accumulator it would be 6.941. The order of the partial sums, each
    rounded with ties away from zero, is unknown: here in order of the elements.
    """
    y = np.asarray(exp(x))
    axes = tuple(range(y.ndim)) if axes is None else tuple(int(a) % y.ndim for a in np.ravel(axes))
    kept = [a for a in range(y.ndim) if a not in axes]
    rows = y.transpose(*kept, *axes).reshape(*(y.shape[a] for a in kept), -1)
    total = np.zeros(rows.shape[:-1], np.float32)
    for k in range(rows.shape[-1]):
        total = r16(total.astype(np.float64) + rows[..., k])
    result = log(total)
    return np.expand_dims(result, axes) if keep_dims else result
