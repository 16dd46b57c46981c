"""Products of matrices, attention, and recurrent layers, whose gates torch has in another order."""

from __future__ import annotations

from pathlib import Path
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


@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 2, 4), (4, 3, 2, 4), (5, 1, 2, 3, 4)])
def test_operands_of_other_ranks(shape: tuple[int, ...]) -> None:
    """The shapes of the documentation among them."""
    x, y = noise(*shape), noise(10, 4, 3, seed=1)
    if len(shape) < 3:
        close("matmul", np.matmul(x.astype(np.float64), y), x=x, y=y)
    close("matmul", np.matmul(x.astype(np.float64), y[0]), x=x, y=y[0])
    close("matmul", np.matmul(x.astype(np.float64), y[0, :, 0]), x=x, y=y[0, :, 0])


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 1, 3, 2, 4)])
def test_linear(shape: tuple[int, ...]) -> None:
    x, weight, bias = noise(*shape), noise(5, 4, seed=1), noise(5, seed=2)
    tensors = [torch.from_numpy(a) for a in (x, weight, bias)]
    close("linear", torch.nn.functional.linear(*tensors), x=x, weight=weight, bias=bias)
    close("linear", torch.nn.functional.linear(*tensors[:2]), x=x, weight=weight)


@pytest.mark.parametrize(
    "equation",
    ["nchw,nwhu->nchu", "chw,whr->chr", "abcd,adce->abce", "vnm,mno->vno", "nchw, nwhu -> nchu",
     "NchW,NWhu->Nchu", "ij,kj->ik"],
)  # fmt: skip
def test_einsum(equation: str) -> None:
    left, right = equation.replace(" ", "").partition("->")[0].split(",")
    letters = dict.fromkeys(left + right)
    sizes = dict(zip(letters, (2, 3, 4, 5, 6), strict=False))
    x = noise(*(sizes[c] for c in left))
    y = noise(*(sizes[c] for c in right), seed=1)
    close("einsum", np.einsum(equation, x, y), values=(x, y), equation=equation)


@pytest.mark.parametrize(("n", "h"), [(1, 4), (2, 1), (1, 1)])
@pytest.mark.parametrize("swapped", [False, True])
def test_einsum_broadcasts(n: int, h: int, swapped: bool) -> None:
    sizes = ((n, h), (2, 4)) if not swapped else ((2, 4), (n, h))
    (n1, h1), (n2, h2) = sizes
    x, y = noise(n1, 3, h1, 5), noise(n2, 5, h2, 6, seed=1)
    expected = np.einsum("nchw,nwhu->nchu", np.broadcast_to(x, (2, 3, 4, 5)),
                         np.broadcast_to(y, (2, 5, 4, 6)))  # fmt: skip
    close("einsum", expected, values=(x, y), equation="nchw,nwhu->nchu")
    expected = np.einsum("chw,whr->chr", np.broadcast_to(x[0], (3, 4, 5)),
                         np.broadcast_to(y[0], (5, 4, 6)))  # fmt: skip
    if max(h1, h2) == 4:
        close("einsum", expected, values=(x[0], y[0]), equation="chw,whr->chr")


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


def torch_attention(inputs: dict[str, Any], mask: Any = None) -> Any:
    tensors = [torch.from_numpy(a) for a in inputs.values()]
    return ATTEND(
        *tensors, attn_mask=None if mask is None else torch.from_numpy(np.atleast_2d(mask))
    )


@pytest.mark.parametrize("shape", [(5,), (1, 5), (7, 5), (1, 1, 5), (2, 1, 5), (3, 1, 7, 5)])
def test_masks_broadcast(shape: tuple[int, ...]) -> None:
    inputs, added = operands(3, 2), noise(*shape, seed=3)
    close(NAME, torch_attention(inputs), **inputs)
    close(NAME, torch_attention(inputs, added), attn_mask=added, **inputs)
    seen = added > -0.5
    seen[..., 0] = True
    close(NAME, torch_attention(inputs, seen), attn_mask=seen, **inputs)
    hidden = np.where(seen, 0, -np.inf).astype(np.float32)
    close(NAME, torch_attention(inputs, seen), attn_mask=hidden, **inputs)


def test_attention_written_out() -> None:
    """Scores 2 and 0 over sqrt(4); True takes part; large scores do not overflow."""
    query, key = f32([[[2, 0, 0, 0]]]), f32([[[1, 0, 0, 0], [0, 1, 0, 0]]])
    a = np.e / (np.e + 1)
    close(NAME, [[[10 * a + 20 * (1 - a)]]], query=query, key=key, value=f32([[[10], [20]]]))
    inputs = operands(1, length=1, keys=3)
    close(NAME, inputs["value"][:, 1:2], attn_mask=np.array([False, True, False]), **inputs)
    query, key = f32([[[1e4]]]), f32([[[1e4], [-1e4]]])
    close(NAME, [[[1]]], query=query, key=key, value=f32([[[1], [2]]]))
    close(NAME, [[[1]]], query=-query, key=-key, value=f32([[[1], [2]]]))


def test_a_row_without_any_position() -> None:
    inputs = operands(1, length=2)
    mask = np.array([[True] * 5, [False] * 5])
    result = eval_op(NAME, attn_mask=mask, **inputs)
    assert np.isfinite(result[0, 0]).all()
    assert np.isnan(result[0, 1]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_type_stays_and_so_do_the_operands(dtype: Any) -> None:
    inputs = {k: v.astype(dtype) for k, v in operands(2).items()}
    before = {k: v.copy() for k, v in inputs.items()}
    result = eval_op(NAME, attn_mask=np.ones((7, 5), bool), **inputs)
    assert result.dtype == dtype
    assert all(np.array_equal(before[k], v) for k, v in inputs.items())


LSTM, GRU = (0, 1, 3, 2), (0, 2, 1)
"""torch's input, forget, cell, output and reset, update, new, in MIL's order."""


def reordered(array: Any, order: tuple[int, ...]) -> Any:
    parts = np.split(array.detach().numpy(), len(order))
    return np.concatenate([parts[i] for i in order])


def parameters(layer: nn.RNNBase, order: tuple[int, ...], suffix: str = "") -> dict[str, Any]:
    """MIL's weights of a torch layer; its two biases added where MIL has one."""
    names = (f"{kind}_l0{suffix}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    wi, wh, bi, bh = (reordered(getattr(layer, n), order) for n in names)
    return {"weight_ih": wi, "weight_hh": wh, "bias": bi + bh, "_biases": (bi, bh)}


def public(weights: dict[str, Any], suffix: str = "") -> dict[str, Any]:
    return {k + suffix: v for k, v in weights.items() if not k.startswith("_")}


def tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def compare(found: Any, expected: Any) -> None:
    for mine, other in zip(found, expected, strict=True):
        other = other.detach().numpy() if isinstance(other, torch.Tensor) else other
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
        assert mine.shape == other.shape
        assert mine.dtype == np.float32


def layer(kind: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(4, 3, **options).eval()


X, H0, C0 = noise(5, 2, 4), noise(1, 2, 3, seed=1), noise(1, 2, 3, seed=2)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("every", [False, True])
def test_lstm(reverse: bool, every: bool) -> None:
    """In reverse the outputs stay in the order of computation, as coremltools' tests have it."""
    torch_layer = layer(nn.LSTM)
    x = X[::-1] if reverse else X
    y, (h, c) = torch_layer(tensor(x), (tensor(H0), tensor(C0)))
    found = eval_op("lstm", x=X, initial_h=H0[0], initial_c=C0[0], output_sequence=every,
                    direction="reverse" if reverse else "forward",
                    **public(parameters(torch_layer, LSTM)))  # fmt: skip
    compare(found, (y if every else y[-1:], h[0], c[0]))


@pytest.mark.parametrize("every", [False, True])
def test_lstm_in_both_directions(every: bool) -> None:
    torch_layer = layer(nn.LSTM, bidirectional=True)
    h0, c0 = noise(2, 2, 3, seed=1), noise(2, 2, 3, seed=2)
    y, (h, c) = torch_layer(tensor(X), (tensor(h0), tensor(c0)))
    if not every:
        y = torch.cat([y[-1:, :, :3], y[:1, :, 3:]], dim=2)
    back = public(parameters(torch_layer, LSTM, "_reverse"), "_back")
    found = eval_op("lstm", x=X, initial_h=np.concatenate(h0, axis=1),
                    initial_c=np.concatenate(c0, axis=1), direction="bidirectional",
                    output_sequence=every, **public(parameters(torch_layer, LSTM)),
                    **back)  # fmt: skip
    compare(found, (y, torch.cat([*h], dim=1), torch.cat([*c], dim=1)))


def activate(name: str, x: Any) -> Any:
    return {
        "sigmoid": lambda: 1 / (1 + np.exp(-x)), "tanh": lambda: np.tanh(x),
        "scaled_tanh": lambda: np.tanh(x), "relu": lambda: np.maximum(x, 0),
        "linear": lambda: x, "hard_sigmoid": lambda: np.minimum(np.maximum(0.2 * x + 0.5, 0), 1),
    }[name]()  # fmt: skip


NAMES = ("sigmoid", "tanh", "scaled_tanh", "relu", "linear", "hard_sigmoid")


@pytest.mark.parametrize("clip", [None, 0.2, 50.0])
@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("cell", ["tanh", "relu"])
def test_lstm_with_peepholes_written_out(activation: str, cell: str, clip: float | None) -> None:
    """One sample at a time in float64; the output gate sees the new cell state, clipped."""
    w, u, b, p = (noise(12, 4, seed=3), noise(12, 3, seed=4), noise(12, seed=5), noise(9, seed=6))
    recurrent = {"tanh": "hard_sigmoid", "relu": "tanh"}.get(activation, "sigmoid")
    expected = np.empty((5, 2, 3))
    for n in range(2):
        h, c = H0[0, n].astype(np.float64), C0[0, n].astype(np.float64)
        for t in range(5):
            i, f, o, z = np.split(w.astype(np.float64) @ X[t, n] + u @ h + b, 4)
            p_i, p_f, p_o = np.split(p, 3)
            old = c
            c = activate(recurrent, f + p_f * old) * old
            c = c + activate(recurrent, i + p_i * old) * activate(cell, z)
            c = c if clip is None else np.clip(c, -clip, clip)
            h = expected[t, n] = activate(recurrent, o + p_o * c) * activate(activation, c)
    y, h, _ = eval_op("lstm", x=X, initial_h=H0[0], initial_c=C0[0], weight_ih=w, weight_hh=u,
                      bias=b, peephole=p, cell_activation=cell, activation=activation, clip=clip,
                      recurrent_activation=recurrent, output_sequence=True)  # fmt: skip
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(h, y[-1])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("every", [False, True])
def test_gru_reset_after_the_product(reverse: bool, every: bool) -> None:
    torch_layer = layer(nn.GRU)
    weights = parameters(torch_layer, GRU)
    input_bias, bias = weights["_biases"]
    y, h = torch_layer(tensor(X[::-1] if reverse else X), tensor(H0))
    found = eval_op("gru", x=X, initial_h=H0[0], output_sequence=every,
                    direction="reverse" if reverse else "forward", reset_after=True,
                    input_bias=input_bias, **{**public(weights), "bias": bias})  # fmt: skip
    compare(found, (y if every else y[-1:], h[0]))


@pytest.mark.parametrize(
    ("activation", "recurrent"), [("tanh", "sigmoid"), ("sigmoid", "tanh"), ("relu", "sigmoid")]
)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_gru_reset_before_the_product(activation: str, recurrent: str, direction: str) -> None:
    """Written out as in coremltools' tests, one sample at a time."""
    w, u, b = noise(9, 4, seed=3), noise(9, 3, seed=4), noise(9, seed=5)
    (w_r, w_o, w_z), (u_r, u_o, u_z), (b_r, b_o, b_z) = (np.split(a, 3) for a in (w, u, b))
    expected = np.empty((5, 2, 3))
    for n in range(2):
        h = H0[0, n]
        for t, x in enumerate((X if direction == "forward" else X[::-1])[:, n]):
            z = activate(recurrent, w_z @ x + u_z @ h + b_z)
            r = activate(recurrent, w_r @ x + u_r @ h + b_r)
            o = activate(activation, w_o @ x + u_o @ (h * r) + b_o)
            h = expected[t, n] = (1 - z) * o + z * h
    shared = {"x": X, "initial_h": H0[0], "weight_ih": w, "weight_hh": u, "activation": activation,
              "recurrent_activation": recurrent, "direction": direction,
              "output_sequence": True}  # fmt: skip
    y, h = eval_op("gru", opset="iOS15", bias=b, **shared)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(h, y[-1])
    other, _ = eval_op("gru", input_bias=b / 4, bias=b * 3 / 4, **shared)
    np.testing.assert_allclose(other, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("every", [False, True])
def test_rnn(activation: str, reverse: bool, every: bool) -> None:
    torch_layer = layer(nn.RNN, nonlinearity=activation)
    y, h = torch_layer(tensor(X[::-1] if reverse else X), tensor(H0))
    found = eval_op("rnn", x=X, initial_h=H0[0], activation=activation, output_sequence=every,
                    direction="reverse" if reverse else "forward",
                    **public(parameters(torch_layer, (0,))))  # fmt: skip
    compare(found, (y if every else y[-1:], h[0]))


def test_without_bias() -> None:
    torch_layer = layer(nn.RNN, bias=False)
    w, u = (getattr(torch_layer, n).detach().numpy() for n in ("weight_ih_l0", "weight_hh_l0"))
    y, h = torch_layer(tensor(X))
    found = eval_op("rnn", x=X, initial_h=np.zeros((2, 3), np.float32), weight_ih=w, weight_hh=u,
                    output_sequence=True)  # fmt: skip
    compare(found, (y, h[0]))


@pytest.mark.parametrize(("name", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_a_sequence_of_no_position(name: str, gates: int) -> None:
    shared = {"x": X[:0], "initial_h": H0[0], "weight_ih": noise(gates * 3, 4),
              "weight_hh": noise(gates * 3, 3)}  # fmt: skip
    if name == "lstm":
        shared["initial_c"] = C0[0]
    y, h, *_ = eval_op(name, output_sequence=True, **shared)
    assert y.shape == (0, 2, 3)
    np.testing.assert_array_equal(h, H0[0])
    np.testing.assert_array_equal(eval_op(name, **shared)[0], H0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.both = nn.LSTM(4, 3, bidirectional=True)
        self.forth = nn.LSTM(6, 5)
        self.simple = nn.RNN(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.simple(self.forth(self.both(x)[0])[0])[0]
        return y


def test_layers_that_coremltools_converted(tmp_path: Path) -> None:
    from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
    from pytest_ane.mlprogram.executor import Session
    from pytest_ane.mlprogram.model import read_model

    ct = import_coremltools()
    model = Recurrent().eval()
    with torch.no_grad(), converter_notes():
        expected = model(tensor(X)).numpy()
        ct.convert(
            torch.jit.trace(model, tensor(X)),
            inputs=[ct.TensorType("x", X.shape)],
            outputs=[ct.TensorType("y")],
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT32,
            skip_model_load=True,
        ).save(str(tmp_path / "m.mlpackage"))
    session = Session(read_model(tmp_path / "m.mlpackage"))
    np.testing.assert_allclose(session.predict({"x": X})["y"], expected, rtol=1e-5, atol=1e-6)
