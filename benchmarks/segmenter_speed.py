"""What a prediction takes, against shortest paths by other means over the same graph.

    python -m benchmarks.segmenter_speed

A seeded chain of 16,000 operations with islands off the ANE, with the GPU: estimates, segments,
margins and reasons. Bellman-Ford in numpy gets the estimates too, and only the
cost of the best path. Exit code 1 where the two costs differ or the prediction takes 2 s.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_ane.gates.placement.segmenter import Edges, Op, Tensor, edge_costs, estimates, predict
from pytest_ane.gates.placement.segmenter._costs import models

_BAR = 2.0
_KINDS = ("conv", "relu", "sigmoid", "add", "softmax", "conv", "mul", "cumsum", "transpose")


def chain(count: int) -> list[Op]:
    """A seeded graph; one operation in 40 is not for the ANE."""
    draw = np.random.default_rng(0)
    weight = Tensor((64, 64, 3, 3), constant=True)
    ops = []
    for index in range(count):
        kind = str(draw.choice(_KINDS, p=[0.2, 0.15, 0.15, 0.15, 0.1, 0.1, 0.1, 0.025, 0.025]))
        shape = Tensor((1, 64, int(draw.choice([8, 32])), 32))
        inputs = (shape, shape) if kind in ("add", "mul") else (shape,)
        ops.append(Op(f"v{index}", kind, inputs, (shape,), weight if kind == "conv" else None))
    return ops


def bellman_ford(costs: np.ndarray[Any, Any], edges: Edges) -> float:
    """Cost of the best path: every edge is relaxed until nothing changes, nodes in file order.

    Args:
        costs: ms, `[operations, backends]`.
        edges: ms of launches, switches and ends.
    """
    enter = np.add(edges.launch, edges.switch)
    change = np.where(np.eye(len(enter), dtype=bool), 0.0, enter)
    best = np.full(costs.shape, np.inf)
    best[0] = costs[0] + edges.launch
    for _ in range(len(costs)):
        relaxed = best.copy()
        for index in range(1, len(costs)):
            through = relaxed[index - 1][:, None] + change
            np.minimum(relaxed[index], through.min(0) + costs[index], out=relaxed[index])
        if np.array_equal(relaxed, best):
            break
        best = relaxed
    return float((best[-1] + edges.end).min())


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a bar is missed."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=16_000)
    ops = chain(parser.parse_args(arguments).operations)
    model = models()["M4"]
    prediction, seconds = _timed(lambda: predict(ops, "ALL"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total, relaxing = _timed(
        lambda: bellman_ford(
            np.array(estimates(ops, "ALL", model)), edge_costs("ALL", model)
        )
    )  # fmt: skip
    same = prediction.total_ms is not None and abs(total - prediction.total_ms) < 1e-6
    print(f"operations {len(ops):,}, segments {len(prediction.segments):,}")
    print(f"prediction: {seconds:.2f} s of processor time, {peak:.0f} MiB of the whole process")
    print(f"Bellman-Ford, the cost alone: {relaxing:.2f} s, {relaxing / seconds:.2f} times as long")
    print(f"paths {'agree' if same else 'differ'}; target {_BAR:g} s")
    return 0 if same and seconds < _BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
