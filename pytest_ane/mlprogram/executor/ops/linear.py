"""Matrix products, attention, and recurrent layers.

Recurrent layers take `x [s, b, I]` and states `[b, H]`. Gates lie one after another along the
weights' first axis, in MIL's order: input, forget, output, cell for `lstm`; reset, new, update for
`gru`. Outputs of direction `reverse` come in the order of computation, the last position first;
those of `bidirectional` in the order of positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor._registry import register
from pytest_ane.mlprogram.executor.ops.elementwise import (
    relu,
    scaled_tanh,
    sigmoid,
    sigmoid_hard,
    softmax,
)
from pytest_ane.mlprogram.executor.weights import StreamedWeight


@register("matmul")
def matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Any:
    """`x y` over the last two axes, the others broadcast; either may be transposed first.

    A vector is a row on the left and a column on the right; its axis is then removed again.
    """
    x = np.swapaxes(x, -1, -2) if transpose_x and x.ndim > 1 else x
    y = np.swapaxes(y, -1, -2) if transpose_y and y.ndim > 1 else y
    if x.ndim > 1 and y.ndim > 1 and x.shape[-1] == 1 == y.shape[-2]:
        # A column by a row: nothing is summed, and BLAS takes five times as long.
        return np.multiply(x, y)
    return np.matmul(x, y)


@register("linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`x weight^T + bias`, `x [.., in]`, `weight [out, in]`, `bias [out]`.

    Raises:
        ValueError: the weight is no matrix, or the bias not of its rows.
    """
    if weight.ndim != 2 or (bias is not None and np.shape(bias) != weight.shape[:1]):
        raise ValueError(f"a weight {weight.shape} and a bias {np.shape(bias)}")
    if isinstance(weight, StreamedWeight):
        columns = np.swapaxes(x.reshape(1, -1, x.shape[-1]), 1, 2)
        y = weight.product(columns)[0].T.reshape(*x.shape[:-1], weight.shape[0])
    else:
        y = np.matmul(x, weight.T)
    return y if bias is None else y + bias


@register("einsum")
def einsum(values: Any, equation: str) -> Any:
    """Sum of products as the equation says.

    MIL's own equations are `nchw,nwhu->nchu` and `chw,whr->chr`, under any letters: matrix products
    for every n and h, which broadcast.
    """
    letters = {c: str(i) for i, c in enumerate(dict.fromkeys(c for c in equation if c.isalpha()))}
    pattern = "".join(letters.get(c, c) for c in equation if not c.isspace())
    if pattern not in ("0123,0324->0124", "012,213->013"):
        return np.einsum(equation, *values, optimize=True)
    x, y = values
    if not x.ndim == y.ndim == len(pattern.split(",")[0]):
        raise ValueError(f"operands of rank {x.ndim} and {y.ndim} for {equation!r}")
    product = np.matmul(np.swapaxes(x, -3, -2), np.swapaxes(y, -3, -2))
    return np.swapaxes(product, -3, -2)


@register("scaled_dot_product_attention", opset="iOS18")
def scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
    """softmax(Q K^T / sqrt(E) + mask) V, of `[*B, L, E]`, `[*B, S, E]` and `[*B, S, EV]`.

    The mask `[.., S]` broadcasts to `[*B, L, S]`; floats are added, and where a bool is false a
    position is left out. A row without any position gives NaN, as the formula has it.
    """
    _check_attention(query, key, value, attn_mask)
    scores = np.matmul(query, np.swapaxes(key, -1, -2))
    scores *= 1 / math.sqrt(query.shape[-1])
    if attn_mask is not None and attn_mask.dtype == np.bool_:
        scores = np.where(attn_mask, scores, -np.inf).astype(scores.dtype, copy=False)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return np.matmul(softmax(scores), value)


def _check_attention(query: Any, key: Any, value: Any, mask: Any) -> None:
    """Operands that do not belong together, which numpy might broadcast."""
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if query.ndim < 3 or not query.ndim == key.ndim == value.ndim:
        raise ValueError(f"{shapes}: of one rank, at least 3, expected")
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise ValueError(f"{shapes}: the batch differs")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(f"{shapes}: the embedding or the sequence length differs")
    if mask is None:
        return
    scores = (*query.shape[:-1], key.shape[-2])
    if mask.shape[-1:] != scores[-1:] or np.broadcast_shapes(mask.shape, scores) != scores:
        raise ValueError(f"a mask {mask.shape} does not broadcast to the scores {scores}")


Function = Callable[[Any], Any]


# With the defaults of MIL's operations of these names; `scaled_tanh` is then `tanh`.
_ACTIVATIONS: dict[str, Function] = {
    "hard_sigmoid": sigmoid_hard, "linear": lambda x: x, "relu": relu, "scaled_tanh": scaled_tanh,
    "sigmoid": sigmoid, "sigmoid_hard": sigmoid_hard, "tanh": np.tanh,
}  # fmt: skip


@register("lstm")
def lstm(
    x: Any,
    initial_h: Any,
    initial_c: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias: Any = None,
    peephole: Any = None,
    weight_ih_back: Any = None,
    weight_hh_back: Any = None,
    bias_back: Any = None,
    peephole_back: Any = None,
    direction: str = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    activation: str = "tanh",
    clip: Any = None,
) -> Any:
    """Long short-term memory.

    i, f = rec(W x + U h + b + p c) and z = cell(W x + U h + b); c' = clip(f c + i z);
    o = rec(W x + U h + b + p c'); h' = o act(c'). Both directions' states and outputs lie one
    after another along the last axis.

    Returns:
        Hidden states `[s, b, D H]`, or the last alone `[1, b, D H]`; the last hidden state and the
        last cell state `[b, D H]`.
    """
    _check_direction(direction, "forward", "reverse", "bidirectional")
    functions = _function(recurrent_activation), _function(cell_activation), _function(activation)
    weights = (weight_ih, weight_hh, bias, peephole)
    if direction != "bidirectional":
        ordered = x[::-1] if direction == "reverse" else x
        every, last, c = _lstm(ordered, initial_h, initial_c, weights, functions, clip)
        return every if output_sequence else last[None], last, c
    if weight_ih_back is None or weight_hh_back is None:
        raise ValueError("a bidirectional lstm without weight_ih_back or weight_hh_back")
    back = (weight_ih_back, weight_hh_back, bias_back, peephole_back)
    (h0, h0_back), (c0, c0_back) = (np.split(s, 2, axis=1) for s in (initial_h, initial_c))
    states, h, c = _lstm(x, h0, c0, weights, functions, clip)
    states_back, h_back, c_back = _lstm(x[::-1], h0_back, c0_back, back, functions, clip)
    every = np.concatenate([states, states_back[::-1]], axis=-1)
    last = np.concatenate([h, h_back], axis=-1)
    return every if output_sequence else last[None], last, np.concatenate([c, c_back], axis=-1)


def _lstm(
    x: Any, h: Any, c: Any, weights: Any, functions: tuple[Function, ...], clip: Any
) -> tuple[Any, Any, Any]:
    """One direction: all hidden states `[s, b, H]`, the last one, and the last cell state."""
    weight_ih, weight_hh, bias, peephole = weights
    _check_shapes(
        4, x, weight_ih, weight_hh, (h, c), {"bias": (bias, 4), "peephole": (peephole, 3)}
    )
    recurrent, cell, activation = functions
    p_i, p_f, p_o = (None,) * 3 if peephole is None else np.split(peephole, 3)
    inputs = x @ weight_ih.T + (0 if bias is None else bias)
    states = np.empty((*x.shape[:2], h.shape[-1]), inputs.dtype)
    for t, gates in enumerate(inputs):
        i, f, o, z = np.split(gates + h @ weight_hh.T, 4, axis=-1)
        c = recurrent(_peep(f, p_f, c)) * c + recurrent(_peep(i, p_i, c)) * cell(z)
        c = c if clip is None else np.clip(c, -clip, clip)
        h = states[t] = recurrent(_peep(o, p_o, c)) * activation(c)
    return states, h, c


def _peep(gate: Any, weight: Any, c: Any) -> Any:
    return gate if weight is None else gate + weight * c


@register("gru")
def gru(
    x: Any,
    initial_h: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias: Any = None,
    direction: str = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    activation: str = "tanh",
    reset_after: bool = False,
    input_bias: Any = None,
) -> Any:
    """Gated recurrent unit.

    r, z = rec(W x + b_i + U h + b); h' = (1 - z) o + z h with o = act(W x + b_i + U (r h) + b),
    or act(W x + b_i + r (U h + b)) where the reset comes after the product (iOS 18), as in torch.

    Returns:
        Hidden states `[s, b, H]`, or the last alone `[1, b, H]`; the last hidden state `[b, H]`.
    """
    _check_direction(direction, "forward", "reverse")
    biases = {"bias": (bias, 3), "input_bias": (input_bias, 3)}
    _check_shapes(3, x, weight_ih, weight_hh, (initial_h,), biases)
    recurrent, function = _function(recurrent_activation), _function(activation)
    u_r, u_o, u_z = (u.T for u in np.split(weight_hh, 3))
    b_r, b_o, b_z = (0, 0, 0) if bias is None else np.split(bias, 3)
    inputs = x @ weight_ih.T + (0 if input_bias is None else input_bias)

    def step(gates: Any, h: Any) -> Any:
        w_r, w_o, w_z = np.split(gates, 3, axis=-1)
        r, z = recurrent(w_r + h @ u_r + b_r), recurrent(w_z + h @ u_z + b_z)
        o = function(w_o + (r * (h @ u_o + b_o) if reset_after else (r * h) @ u_o + b_o))
        return (1 - z) * o + z * h

    return _run(step, inputs, initial_h, direction, output_sequence)


@register("rnn")
def rnn(
    x: Any,
    initial_h: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias: Any = None,
    direction: str = "forward",
    output_sequence: bool = False,
    activation: str = "tanh",
) -> Any:
    """Recurrent network, h' = act(W x + U h + b).

    Returns:
        Hidden states `[s, b, H]`, or the last alone `[1, b, H]`; the last hidden state `[b, H]`.
    """
    _check_direction(direction, "forward", "reverse")
    _check_shapes(1, x, weight_ih, weight_hh, (initial_h,), {"bias": (bias, 1)})
    function = _function(activation)
    inputs = x @ weight_ih.T + (0 if bias is None else bias)

    def step(gates: Any, h: Any) -> Any:
        return function(gates + h @ weight_hh.T)

    return _run(step, inputs, initial_h, direction, output_sequence)


def _run(
    step: Callable[[Any, Any], Any], inputs: Any, h: Any, direction: str, output_sequence: bool
) -> tuple[Any, Any]:
    states = np.empty((*inputs.shape[:2], h.shape[-1]), inputs.dtype)
    for t, gates in enumerate(inputs[::-1] if direction == "reverse" else inputs):
        h = states[t] = step(gates, h)
    return states if output_sequence else h[None], h


def _function(name: str) -> Function:
    try:
        return _ACTIVATIONS[name.lower()]
    except KeyError:
        raise ValueError(
            f"unknown activation {name!r}; there are: {', '.join(_ACTIVATIONS)}"
        ) from None


def _check_direction(direction: str, *allowed: str) -> None:
    if direction not in allowed:
        raise ValueError(f"unknown direction {direction!r}; there are: {', '.join(allowed)}")


def _check_shapes(
    gates: int,
    x: Any,
    weight_ih: Any,
    weight_hh: Any,
    states: tuple[Any, ...],
    vectors: dict[str, tuple[Any, int]],
) -> None:
    """Weights and states that do not belong together, which numpy might broadcast."""
    if x.ndim != 3 or weight_hh.ndim != 2:
        raise ValueError(
            f"x {x.shape} of rank 3 and weight_hh {weight_hh.shape} of rank 2 expected"
        )
    hidden, (batch, inputs) = weight_hh.shape[1], x.shape[1:]
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "weight_ih": (weight_ih, (gates * hidden, inputs)),
        "weight_hh": (weight_hh, (gates * hidden, hidden)),
        **{k: (v, (n * hidden,)) for k, (v, n) in vectors.items() if v is not None},
        **{
            n: (s, (batch, hidden))
            for n, s in zip(("initial_h", "initial_c"), states, strict=False)
        },
    }
    for name, (array, shape) in expected.items():
        if array.shape != shape:
            raise ValueError(f"{name} has the shape {array.shape}, not {shape}")
