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
from pytest_ane.mlprogram.executor.ops.elementwise import FORMULAS, softmax
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
    """`x weight^T + bias`, `x [.., in]`, `weight [out, in]`, `bias [out]`."""
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

    MIL's own, `nchw,nwhu->nchu` and `chw,whr->chr`, are matrix products for every n and h, which
    broadcast.
    """
    letters = {c: str(i) for i, c in enumerate(dict.fromkeys(c for c in equation if c.isalpha()))}
    pattern = "".join(letters.get(c, c) for c in equation if not c.isspace())
    if pattern not in ("0123,0324->0124", "012,213->013"):
        return np.einsum(equation, *values, optimize=True)
    x, y = values
    return np.swapaxes(np.matmul(np.swapaxes(x, -3, -2), np.swapaxes(y, -3, -2)), -3, -2)


@register("scaled_dot_product_attention", opset="iOS18")
def scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
    """softmax(Q K^T / sqrt(E) + mask) V, of `[*B, L, E]`, `[*B, S, E]` and `[*B, S, EV]`.

    The mask `[.., S]` broadcasts to `[*B, L, S]`; floats are added, and where a bool is false a
    position is left out. A row without any position gives NaN, as the formula has it.
    """
    shapes = [array.shape[:-2] for array in (query, key, value)]
    if query.ndim < 3 or shapes != shapes[:1] * 3:
        raise ValueError(f"batches of one shape, of rank 1 at least, expected, not {shapes}")
    scores = np.matmul(query, np.swapaxes(key, -1, -2))
    scores *= 1 / math.sqrt(query.shape[-1])
    if attn_mask is None:
        return np.matmul(softmax(scores), value)
    mask = attn_mask.shape
    if mask[-1:] != scores.shape[-1:] or np.broadcast_shapes(mask, scores.shape) != scores.shape:
        raise ValueError(f"a mask {mask} does not broadcast to the scores {scores.shape}")
    if attn_mask.dtype == np.bool_:
        scores = np.where(attn_mask, scores, -np.inf).astype(scores.dtype, copy=False)
    else:
        scores = scores + attn_mask
    return np.matmul(softmax(scores), value)


Function = Callable[[Any], Any]


# With the defaults of MIL's operations of these names; `scaled_tanh` is then `tanh`.
_ACTIVATIONS: dict[str, Function] = {
    **{name: FORMULAS[name] for name in ("relu", "scaled_tanh", "sigmoid", "sigmoid_hard")},
    "hard_sigmoid": FORMULAS["sigmoid_hard"], "linear": lambda x: x, "tanh": np.tanh,
}  # fmt: skip


@register("lstm")
def lstm(
    x: Any, initial_h: Any, initial_c: Any, direction: str = "forward",
    output_sequence: bool = False, recurrent_activation: str = "sigmoid",
    cell_activation: str = "tanh", activation: str = "tanh", clip: Any = None, **weights: Any,
) -> Any:  # fmt: skip
    """Long short-term memory.

    i, f = rec(W x + U h + b + p c) and z = cell(W x + U h + b); c' = clip(f c + i z);
    o = rec(W x + U h + b + p c'); h' = o act(c'). Both directions' states and outputs lie one
    after another along the last axis. `weights` are those of `_lstm`, the other direction's with
    `_back` after their names.

    Returns:
        Hidden states `[s, b, D H]`, or the last alone `[1, b, D H]`; the last hidden state and the
        last cell state `[b, D H]`.
    """
    functions = tuple(map(_function, (recurrent_activation, cell_activation, activation)))
    back = {k.removesuffix("_back"): w for k, w in weights.items() if k.endswith("_back")}
    forth = {k: w for k, w in weights.items() if not k.endswith("_back")}
    if direction != "bidirectional":
        ordered = _ordered(x, direction)
        every, h, c = _lstm(ordered, initial_h, initial_c, functions, clip, **forth)
    elif not {"weight_ih", "weight_hh"} <= back.keys():
        raise ValueError("a bidirectional lstm without weight_ih_back or weight_hh_back")
    else:
        (h0, h0_back), (c0, c0_back) = (np.split(s, 2, axis=1) for s in (initial_h, initial_c))
        states, *last = _lstm(x, h0, c0, functions, clip, **forth)
        states_back, *last_back = _lstm(x[::-1], h0_back, c0_back, functions, clip, **back)
        every = np.concatenate([states, states_back[::-1]], axis=-1)
        h, c = (np.concatenate(both, axis=-1) for both in zip(last, last_back, strict=True))
    return every if output_sequence else h[None], h, c


def _lstm(
    x: Any, h: Any, c: Any, functions: tuple[Function, ...], clip: Any, weight_ih: Any,
    weight_hh: Any, bias: Any = None, peephole: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """One direction: all hidden states `[s, b, H]`, the last one, and the last cell state."""
    vectors = {"bias": (bias, 4), "peephole": (peephole, 3)}
    _check_shapes(4, x, weight_ih, weight_hh, {"initial_h": h, "initial_c": c}, vectors)
    recurrent, cell, activation = functions
    p_i, p_f, p_o = (None,) * 3 if peephole is None else np.split(peephole, 3)

    def step(gates: Any, h: Any, c: Any) -> tuple[Any, Any]:
        i, f, o, z = np.split(gates + h @ weight_hh.T, 4, axis=-1)
        c = recurrent(_peep(f, p_f, c)) * c + recurrent(_peep(i, p_i, c)) * cell(z)
        c = c if clip is None else np.clip(c, -clip, clip)
        return recurrent(_peep(o, p_o, c)) * activation(c), c

    return _run(step, x @ weight_ih.T + (0 if bias is None else bias), h, c)


def _peep(gate: Any, weight: Any, c: Any) -> Any:
    return gate if weight is None else gate + weight * c


@register("gru")
def gru(
    x: Any, initial_h: Any, weight_ih: Any, weight_hh: Any, bias: Any = None,
    direction: str = "forward", output_sequence: bool = False,
    recurrent_activation: str = "sigmoid", activation: str = "tanh", reset_after: bool = False,
    input_bias: Any = None,
) -> Any:  # fmt: skip
    """Gated recurrent unit.

    r, z = rec(W x + b_i + U h + b); h' = (1 - z) o + z h with o = act(W x + b_i + U (r h) + b),
    or act(W x + b_i + r (U h + b)) where the reset comes after the product (iOS 18), as in torch.

    Returns:
        Hidden states `[s, b, H]`, or the last alone `[1, b, H]`; the last hidden state `[b, H]`.
    """
    x, vectors = _ordered(x, direction), {"bias": (bias, 3), "input_bias": (input_bias, 3)}
    _check_shapes(3, x, weight_ih, weight_hh, {"initial_h": initial_h}, vectors)
    recurrent, function = _function(recurrent_activation), _function(activation)
    u_r, u_o, u_z = (u.T for u in np.split(weight_hh, 3))
    b_r, b_o, b_z = (0, 0, 0) if bias is None else np.split(bias, 3)

    def step(gates: Any, h: Any) -> tuple[Any]:
        w_r, w_o, w_z = np.split(gates, 3, axis=-1)
        r, z = recurrent(w_r + h @ u_r + b_r), recurrent(w_z + h @ u_z + b_z)
        o = function(w_o + (r * (h @ u_o + b_o) if reset_after else (r * h) @ u_o + b_o))
        return ((1 - z) * o + z * h,)

    every, h = _run(step, x @ weight_ih.T + (0 if input_bias is None else input_bias), initial_h)
    return every if output_sequence else h[None], h


@register("rnn")
def rnn(
    x: Any, initial_h: Any, weight_ih: Any, weight_hh: Any, bias: Any = None,
    direction: str = "forward", output_sequence: bool = False, activation: str = "tanh",
) -> Any:  # fmt: skip
    """Recurrent network, h' = act(W x + U h + b); results as of `gru`."""
    x, function = _ordered(x, direction), _function(activation)
    states = {"initial_h": initial_h}
    _check_shapes(1, x, weight_ih, weight_hh, states, {"bias": (bias, 1)})
    inputs = x @ weight_ih.T + (0 if bias is None else bias)
    every, h = _run(lambda gates, h: (function(gates + h @ weight_hh.T),), inputs, initial_h)
    return every if output_sequence else h[None], h


def _run(step: Callable[..., tuple[Any, ...]], inputs: Any, *state: Any) -> tuple[Any, ...]:
    """All hidden states `[s, b, H]`, then the state that is left, the last hidden one first."""
    states = np.empty((*inputs.shape[:2], state[0].shape[-1]), inputs.dtype)
    for t, gates in enumerate(inputs):
        state = step(gates, *state)
        states[t] = state[0]
    return states, *state


def _function(name: str) -> Function:
    if name.lower() not in _ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; there are: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name.lower()]


def _ordered(x: Any, direction: str) -> Any:
    if direction not in ("forward", "reverse"):
        raise ValueError(f"unknown direction {direction!r}; there are: forward, reverse")
    return x[::-1] if direction == "reverse" else x


def _check_shapes(
    gates: int, x: Any, weight_ih: Any, weight_hh: Any, states: dict[str, Any],
    vectors: dict[str, tuple[Any, int]],
) -> None:  # fmt: skip
    """Refuse weights and states that do not belong together, which numpy might broadcast."""
    if x.ndim != 3 or weight_hh.ndim != 2:
        raise ValueError(f"x {x.shape} is not of rank 3, or weight_hh {weight_hh.shape} not of 2")
    hidden, (batch, inputs) = weight_hh.shape[1], x.shape[1:]
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "weight_ih": (weight_ih, (gates * hidden, inputs)),
        "weight_hh": (weight_hh, (gates * hidden, hidden)),
        **{name: (v, (n * hidden,)) for name, (v, n) in vectors.items() if v is not None},
        **{name: (state, (batch, hidden)) for name, state in states.items()},
    }
    for name, (array, shape) in expected.items():
        if array.shape != shape:
            raise ValueError(f"{name} has the shape {array.shape}, not {shape}")
