"""How a program's operations belong together: attention, and functions of several operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from pytest_ane.gates.hazards._records import Hazard, Role
from pytest_ane.mlprogram.records import Operation, Ref

PRODUCTS = frozenset(("conv", "linear", "matmul"))
_ATTENTION = frozenset(("matmul", "einsum", "scaled_dot_product_attention"))
_ENDS = PRODUCTS | {"softmax", "reduce_mean", "reduce_sum", "layer_norm", "silu", "gelu"}
_MOVES = frozenset(
    ("cast", "concat", "expand_dims", "identity", "reshape", "slice_by_index", "slice_by_size",
     "split", "squeeze", "tile", "transpose")
)  # fmt: skip


class Graph:
    """Operations by what makes and what takes their results."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = list(operations)
        self._makers = {out.name: op for op in self._operations for out in op.outputs}
        self._takers: dict[str, list[Operation]] = defaultdict(list)
        for op in self._operations:
            for name in _names(op):
                self._takers[name].append(op)

    def role(self, op: Operation) -> Role:
        """What a sum of products does in attention."""
        if op.op == "matmul":
            return "values" if self._comes_from_softmax(op) else ""
        return "scores" if op.op in PRODUCTS and self._leads_to_attention(op) else ""

    def follows(self, op: Operation, names: Collection[str]) -> bool:
        """Whether an operation takes, by whatever way, the result of one of these."""
        rest, visited = [op], {op.name}
        while rest:
            for name in _names(rest.pop()):
                if name in names:
                    return True
                maker = self._makers.get(name)
                if maker is not None and maker.name not in visited:
                    visited.add(maker.name)
                    rest.append(maker)
        return False

    def logarithms(self) -> Iterator[tuple[Hazard, Operation, Operation]]:
        """Logarithms of `exp(x) + 1` and of a sum of `exp(x)`: which, its exp, its log."""
        for op in self._operations:
            below = self._made(op, "x") if op.op == "log" else None
            if below is None or below.op not in ("add", "reduce_sum"):
                continue
            inputs = [self._made(below, key) for key in below.inputs]
            exponential = next((i for i in inputs if i is not None and i.op == "exp"), None)
            if exponential is None or (below.op == "add" and not self._adds_constant(below)):
                continue
            yield "softplus" if below.op == "add" else "logsumexp", exponential, op

    def _adds_constant(self, op: Operation) -> bool:
        makers = [self._made(op, key) for key in ("x", "y")]
        return any(maker is None or maker.op == "const" for maker in makers)

    def _made(self, op: Operation, key: str) -> Operation | None:
        arguments = op.inputs.get(key, ())
        only = arguments[0] if len(arguments) == 1 else None
        return self._makers.get(only.name) if isinstance(only, Ref) else None

    def _comes_from_softmax(self, op: Operation) -> bool:
        """Whether an operand is a softmax, moved at most."""
        rest = [self._makers[name] for name in _names(op) if name in self._makers]
        visited: set[str] = set()
        while rest:
            maker = rest.pop()
            if maker.op == "softmax":
                return True
            if maker.op in _MOVES and maker.name not in visited:
                visited.add(maker.name)
                rest += [self._makers[name] for name in _names(maker) if name in self._makers]
        return False

    def _leads_to_attention(self, op: Operation) -> bool:
        """Whether its result reaches a product of activations before any other sum or norm."""
        rest, visited = [op], {op.name}
        while rest:
            for out in rest.pop().outputs:
                for taker in self._takers[out.name]:
                    if taker.op in _ATTENTION:
                        return True
                    if taker.op not in _ENDS and taker.name not in visited:
                        visited.add(taker.name)
                        rest.append(taker)
        return False


def _names(op: Operation) -> Iterator[str]:
    for arguments in op.inputs.values():
        yield from (argument.name for argument in arguments if isinstance(argument, Ref))
