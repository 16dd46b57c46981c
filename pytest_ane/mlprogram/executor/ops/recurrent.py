"""Recurrent layers: `x [s, b, I]`, states `[b, H]`.

Gates lie one after another along the weights' first axis, in MIL's order: input, forget, output,
cell for `lstm`; reset, new, update for `gru`. Outputs of direction `reverse` come in the order of
computation, the last position first; those of `bidirectional` in the order of positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.activation import relu, scaled_tanh, sigmoid, sigmoid_hard
from pytest_ane.mlprogram.executor.registry import register

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
    """Outputs and last hidden state of `h = step(inputs, h)`, position by position."""
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
