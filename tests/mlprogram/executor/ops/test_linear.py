"""Products of matrices, attention, and recurrent layers, whose gates torch has in another order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp
from torch import nn

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import case, close, f32, noise, same

VECTOR, SQUARE = f32([1, 2]), f32([[1, 2], [3, 4]])
BIG = np.array([[2**24 + 1, 1]], np.int32)
LITERALS = [
    case("matmul", [[17], [39]], x=SQUARE, y=f32([[5], [6]])),
    case("matmul", 32, x=f32([1, 2, 3]), y=f32([4, 5, 6])),
    case("matmul", [14, 32], x=f32([[1, 2, 3], [4, 5, 6]]), y=f32([1, 2, 3])),
    case("matmul", [9, 12, 15], x=VECTOR, y=f32([[1, 2, 3], [4, 5, 6]])),
    # A vector is not transposed.
    case("matmul", [5, 11], x=VECTOR, y=SQUARE, transpose_x=True, transpose_y=True),
    case("matmul", [7, 10], x=SQUARE, y=VECTOR, transpose_x=True, transpose_y=True),
    case("matmul", np.zeros((2, 3)), x=noise(2, 0), y=noise(0, 3)),
    # From iOS 17 on, constants may be of another type than the input.
    case("matmul", [[4.5]], x=f32([[1.5, 1]]), y=np.array([[1], [3]], np.int32)),
    case("linear", [[4.5, 2]], x=f32([[1.5, 1]]), weight=np.array([[1, 2], [0, 1]], np.int32),
         bias=np.array([1, 1], np.int32)),
    case("matmul", [[2**24 + 2]], x=BIG, y=np.array([[1], [1]], np.int32)),
    case("linear", [[2**24 + 9]], x=BIG, weight=np.array([[1, 1]], np.int32),
         bias=np.array([7], np.int32)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected", "parameters"), LITERALS)
def test_written_out(op: str, expected: Any, parameters: dict[str, Any]) -> None:
    same(op, expected, **parameters)


@pytest.mark.parametrize("transpose_x", [False, True])
@pytest.mark.parametrize("transpose_y", [False, True])
def test_matmul_transposed(transpose_x: bool, transpose_y: bool) -> None:
    x, y = noise(3, 1, 4, 5), noise(1, 2, 5, 6, seed=1)
    expected = x @ y
    close("matmul", expected, x=x.swapaxes(-1, -2).copy() if transpose_x else x,
          y=y.swapaxes(-1, -2).copy() if transpose_y else y,
          transpose_x=transpose_x, transpose_y=transpose_y)  # fmt: skip


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 1, 3, 2, 4)])
def test_linear(shape: tuple[int, ...]) -> None:
    x, weight, bias = noise(*shape), noise(5, 4, seed=1), noise(5, seed=2)
    tensors = [torch.from_numpy(a) for a in (x, weight, bias)]
    close("linear", torch.nn.functional.linear(*tensors), x=x, weight=weight, bias=bias)
    close("linear", torch.nn.functional.linear(*tensors[:2]), x=x, weight=weight)


@pytest.mark.parametrize(
    "equation",
    ["nchw,nwhu->nchu", "chw,whr->chr", "vnm,mno->vno", "nchw, nwhu -> nchu", "NchW,NWhu->Nchu",
     "ij,kj->ik"],
)  # fmt: skip
def test_einsum(equation: str) -> None:
    left, right = equation.replace(" ", "").partition("->")[0].split(",")
    sizes = dict(zip(dict.fromkeys(left + right), (2, 3, 4, 5, 6), strict=False))
    x, y = noise(*(sizes[c] for c in left)), noise(*(sizes[c] for c in right), seed=1)
    close("einsum", np.einsum(equation, x, y), values=(x, y), equation=equation)


@pytest.mark.parametrize("first", [(1, 4), (2, 1), (1, 1), (2, 4)])
@pytest.mark.parametrize("second", [(2, 4), (1, 1)])
def test_einsum_broadcasts(first: tuple[int, int], second: tuple[int, int]) -> None:
    """As matrix products for every n and h."""
    x, y = noise(first[0], 3, first[1], 5), noise(second[0], 5, second[1], 6, seed=1)
    expected = np.swapaxes(np.swapaxes(x, 1, 2) @ np.swapaxes(y, 1, 2), 1, 2)
    close("einsum", expected, values=(x, y), equation="nchw,nwhu->nchu")
    close("einsum", np.swapaxes(np.swapaxes(x[0], 0, 1) @ np.swapaxes(y[0], 0, 1), 0, 1),
          values=(x[0], y[0]), equation="chw,whr->chr")  # fmt: skip


@given(hnp.mutually_broadcastable_shapes(signature="(m,k),(k,n)->(m,n)", max_dims=2, max_side=4))
def test_shapes_broadcast(shapes: hnp.BroadcastableShapes) -> None:
    x, y = (noise(*shape) for shape in shapes.input_shapes)
    close("matmul", (x.astype(np.float64) @ y), x=x, y=y)


ATTEND: Any = torch.nn.functional.scaled_dot_product_attention
NAME = "scaled_dot_product_attention"


def operands(*batch: int, length: int = 7, keys: int = 5) -> dict[str, Any]:
    """Queries of 16, values of 32."""
    return {"query": noise(*batch, length, 16), "key": noise(*batch, keys, 16, seed=1),
            "value": noise(*batch, keys, 32, seed=2)}  # fmt: skip


@pytest.mark.parametrize("shape", [(5,), (7, 5), (1, 1, 5), (3, 1, 7, 5)])
def test_masks_broadcast(shape: tuple[int, ...]) -> None:
    inputs, added = operands(3, 2), noise(*shape, seed=3)
    seen = added > -0.5
    seen[..., 0] = True
    hidden = np.where(seen, 0, -np.inf).astype(np.float32)
    tensors = [torch.from_numpy(a) for a in inputs.values()]
    close(NAME, ATTEND(*tensors), **inputs)
    for mask, same_mask in ((added, added), (seen, seen), (hidden, seen)):
        expected = ATTEND(*tensors, attn_mask=torch.from_numpy(np.atleast_2d(same_mask)))
        close(NAME, expected, attn_mask=mask, **inputs)


def test_attention_written_out() -> None:
    """Scores 2 and 0 over sqrt(4); True takes part; large scores do not overflow."""
    query, key = f32([[[2, 0, 0, 0]]]), f32([[[1, 0, 0, 0], [0, 1, 0, 0]]])
    a = np.e / (np.e + 1)
    close(NAME, [[[10 * a + 20 * (1 - a)]]], query=query, key=key, value=f32([[[10], [20]]]))
    inputs = operands(1, length=1, keys=3)
    close(NAME, inputs["value"][:, 1:2], attn_mask=np.array([False, True, False]), **inputs)
    query, key = f32([[[1e4]]]), f32([[[1e4], [-1e4]]])
    close(NAME, [[[1]]], query=query, key=key, value=f32([[[1], [2]]]))
    # A row without any position.
    mask = np.array([[True] * 5, [False] * 5])
    result = eval_op(NAME, attn_mask=mask, **operands(1, length=2))
    assert np.isfinite(result[0, 0]).all()
    assert np.isnan(result[0, 1]).all()


GATES = {"lstm": (0, 1, 3, 2), "gru": (0, 2, 1), "rnn": (0,)}
"""torch's input, forget, cell, output and reset, update, new, in MIL's order."""
LAYERS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
X, H0, C0 = noise(5, 2, 4), noise(2, 2, 3, seed=1), noise(2, 2, 3, seed=2)


def weights(layer: nn.RNNBase, op: str, suffix: str = "") -> dict[str, Any]:
    """MIL's weights of a torch layer; of its two biases the sum, but for a `gru`."""
    found = []
    for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        parts = np.split(getattr(layer, f"{kind}_l0{suffix}").detach().numpy(), len(GATES[op]))
        found.append(np.concatenate([parts[i] for i in GATES[op]]))
    w, u, b_i, b_h = found
    if op == "gru":
        return {"weight_ih": w, "weight_hh": u, "bias": b_h, "input_bias": b_i}
    return {"weight_ih": w, "weight_hh": u, "bias": b_i + b_h}


def compare(found: Any, expected: Any) -> None:
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other.detach().numpy(), rtol=1e-5, atol=1e-6, strict=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    ("op", "options"),
    [("lstm", {}), ("gru", {}), ("rnn", {"nonlinearity": "tanh"}),
     ("rnn", {"nonlinearity": "relu"})],
)  # fmt: skip
def test_as_torch(op: str, options: dict[str, str], every: bool, reverse: bool) -> None:
    """In reverse the outputs stay in the order of computation, as coremltools' tests have it."""
    torch.manual_seed(0)
    layer = LAYERS[op](4, 3, **options).eval()
    first = torch.from_numpy(H0[:1])
    state = (first, torch.from_numpy(C0[:1])) if op == "lstm" else first
    y, last = layer(torch.from_numpy((X[::-1] if reverse else X).copy()), state)
    more = {"lstm": {"initial_c": C0[0]}, "gru": {"reset_after": True},
            "rnn": {"activation": options.get("nonlinearity")}}[op]  # fmt: skip
    found = eval_op(op, x=X, initial_h=H0[0], output_sequence=every, **weights(layer, op), **more,
                    direction="reverse" if reverse else "forward")  # fmt: skip
    compare(found, (y if every else y[-1:], *(s[0] for s in (last if op == "lstm" else [last]))))


@pytest.mark.parametrize("every", [False, True])
def test_lstm_in_both_directions(every: bool) -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(4, 3, bidirectional=True).eval()
    y, (h, c) = layer(*map(torch.from_numpy, (X,)), tuple(map(torch.from_numpy, (H0, C0))))
    if not every:
        y = torch.cat([y[-1:, :, :3], y[:1, :, 3:]], dim=2)
    back = {f"{k}_back": v for k, v in weights(layer, "lstm", "_reverse").items()}
    found = eval_op("lstm", x=X, initial_h=np.concatenate(H0, axis=1),
                    initial_c=np.concatenate(C0, axis=1), direction="bidirectional",
                    output_sequence=every, **weights(layer, "lstm"), **back)  # fmt: skip
    compare(found, (y, torch.cat([*h], dim=1), torch.cat([*c], dim=1)))


ACTIVATIONS: dict[str, Any] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh, "scaled_tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0), "linear": lambda x: x,
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("clip", [None, 0.2, 50.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("cell", ["tanh", "relu"])
def test_lstm_with_peepholes_written_out(activation: str, cell: str, clip: float | None) -> None:
    """One sample at a time in float64; the output gate sees the new cell state, clipped."""
    w, u, b, p = (noise(12, 4, seed=3), noise(12, 3, seed=4), noise(12, seed=5), noise(9, seed=6))
    recurrent = {"tanh": "hard_sigmoid", "relu": "tanh"}.get(activation, "sigmoid")
    rec, act, (p_i, p_f, p_o) = ACTIVATIONS[recurrent], ACTIVATIONS[activation], np.split(p, 3)
    expected = np.empty((5, 2, 3))
    for n in range(2):
        h, c = H0[0, n].astype(np.float64), C0[0, n].astype(np.float64)
        for t in range(5):
            i, f, o, z = np.split(w.astype(np.float64) @ X[t, n] + u @ h + b, 4)
            c = rec(f + p_f * c) * c + rec(i + p_i * c) * ACTIVATIONS[cell](z)
            c = c if clip is None else np.clip(c, -clip, clip)
            h = expected[t, n] = rec(o + p_o * c) * act(c)
    y, h, _ = eval_op("lstm", x=X, initial_h=H0[0], initial_c=C0[0], weight_ih=w, weight_hh=u,
                      bias=b, peephole=p, cell_activation=cell, activation=activation, clip=clip,
                      recurrent_activation=recurrent, output_sequence=True)  # fmt: skip
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(h, y[-1])


@pytest.mark.parametrize(
    ("activation", "recurrent"), [("tanh", "sigmoid"), ("sigmoid", "tanh"), ("relu", "sigmoid")]
)
def test_gru_reset_before_the_product(activation: str, recurrent: str) -> None:
    """Written out as in coremltools' tests, one sample at a time."""
    w, u, b = noise(9, 4, seed=3), noise(9, 3, seed=4), noise(9, seed=5)
    (w_r, w_o, w_z), (u_r, u_o, u_z), (b_r, b_o, b_z) = (np.split(a, 3) for a in (w, u, b))
    expected, rec = np.empty((5, 2, 3)), ACTIVATIONS[recurrent]
    for n in range(2):
        h = H0[0, n]
        for t, x in enumerate(X[:, n]):
            r, z = rec(w_r @ x + u_r @ h + b_r), rec(w_z @ x + u_z @ h + b_z)
            o = ACTIVATIONS[activation](w_o @ x + u_o @ (h * r) + b_o)
            h = expected[t, n] = (1 - z) * o + z * h
    shared = {"x": X, "initial_h": H0[0], "weight_ih": w, "weight_hh": u, "activation": activation,
              "recurrent_activation": recurrent, "output_sequence": True}  # fmt: skip
    for options in ({"opset": "iOS15", "bias": b}, {"input_bias": b / 4, "bias": b * 3 / 4}):
        y, h = eval_op("gru", **options, **shared)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(h, y[-1])


@pytest.mark.parametrize("op", GATES)
def test_no_bias_and_a_sequence_of_no_position(op: str) -> None:
    gates = len(GATES[op])
    shared = {"x": X[:0], "initial_h": H0[0], "weight_ih": noise(gates * 3, 4),
              "weight_hh": noise(gates * 3, 3)}  # fmt: skip
    if op == "lstm":
        shared["initial_c"] = C0[0]
    y, h, *_ = eval_op(op, output_sequence=True, **shared)
    assert y.shape == (0, 2, 3)
    np.testing.assert_array_equal(h, H0[0])
    np.testing.assert_array_equal(eval_op(op, **shared)[0], H0[:1])
