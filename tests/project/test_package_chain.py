"""Packages of one's own in a chain: shapes, lengths, feedback, and what refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.manifest import Input
from pytest_ane.manifest.chain import ChainEntry
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.models.families import Branch, apply_output, shard_input
from pytest_ane.probes.domains import domains
from pytest_ane.project._package_chain import PackageLayout, ShardSequence
from tests.mlprogram.executor.programs import build

Body = Callable[..., Any]
ROWS = np.arange(24, dtype=np.float32).reshape(6, 4)


def package(path: Path, shapes: dict[str, tuple[Any, ...]], body: Body, kind: str = "fp32") -> Path:
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    specs = [mb.TensorSpec(shape, getattr(types, kind)) for shape in shapes.values()]
    names = ", ".join(shapes)
    # The builder takes an input's name from the function's parameter.
    own: dict[str, Any] = {}
    exec(f"def function({names}): return body(mb, {names})", {"body": body, "mb": mb}, own)
    return build(path, specs, own["function"])


def doubling(folder: Path, shape: tuple[int, ...]) -> Path:
    """`b = 2 a`."""
    return package(folder / "p.mlpackage", {"a": shape}, lambda mb, a: mb.mul(x=a, y=2.0, name="b"))


def laid_out(path: Path, entry: dict[str, Any], limit: int = 8, **tables: Input) -> PackageLayout:
    model = read_model(path)
    asked = ChainEntry.model_validate({"shard": "L00", **entry}, by_alias=True)
    known = domains(model.inputs, tables, path)
    return PackageLayout("own:L00", asked, [(None, model)], known, {"x": 4, "y": 6}, limit)


def run(path: Path, entry: dict[str, Any], rows: np.ndarray = ROWS, **tables: Input) -> Any:
    layout = laid_out(path, entry, **tables)
    sequence = ShardSequence(layout.load(CpuBackend(), path), layout, layout.most)  # type: ignore[arg-type]
    return layout, sequence(rows)


PLAIN = {"takes": {"a": "x"}, "gives": {"b": "x"}}


@pytest.mark.parametrize(
    ("shape", "positions"),
    [
        ((1, 4, 1, 1), None),
        ((4,), None),
        ((1, 2, 2, 1), None),
        ((1, 4, 1, 2), None),
        ((1, 3, 4), None),
        ((4, 6), None),
        ((4, 4), 0),
        ((4, 4), 1),
    ],
)
def test_rows_of_every_fixed_shape(
    tmp_path: Path, shape: tuple[int, ...], positions: int | None
) -> None:
    """Twice the rows, whatever axis the positions are on, 6 of them in calls of the shape's T."""
    path = doubling(tmp_path, shape)
    entry = PLAIN if positions is None else {**PLAIN, "position_axis": positions}
    count = int(np.prod(shape)) // 4
    rows = ROWS[: 6 // count * count] if count <= 6 else ROWS
    layout, result = run(path, entry, rows)
    assert layout.call_lengths(len(rows)) == [count] * (len(rows) // count)
    assert np.array_equal(result, 2 * rows)


def test_a_call_that_is_too_short(tmp_path: Path) -> None:
    path = doubling(tmp_path, (1, 4, 1, 3))
    with pytest.raises(ExecutionError, match="a call takes 3 positions, and 2 of 5 are left"):
        run(path, PLAIN, ROWS[:5])


def test_the_positions_could_be_along_two_axes(tmp_path: Path) -> None:
    path = doubling(tmp_path, (4, 4))
    with pytest.raises(ExecutionError, match=r"'a' \[4, 4\] could be along the axes 0 and 1; give"):
        laid_out(path, PLAIN)


def test_a_flexible_package_takes_up_to_the_limit(tmp_path: Path) -> None:
    import coremltools as ct
    import torch

    from pytest_ane.make.coremltools_quiet import converter_notes

    class Double(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return 2 * a

    with converter_notes():
        ct.convert(
            torch.jit.trace(Double(), torch.zeros(1, 4, 1, 3)),
            inputs=[ct.TensorType("a", (1, 4, 1, ct.RangeDim(1, 16, 3)))],
            outputs=[ct.TensorType("b")],
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        ).save(str(tmp_path / "p.mlpackage"))
    layout = laid_out(tmp_path / "p.mlpackage", PLAIN, limit=4)
    assert (layout.sees, layout.call_lengths(6)) == ("call", [4, 2])
    _, result = run(tmp_path / "p.mlpackage", PLAIN)
    assert np.array_equal(result, 2 * ROWS)


def test_several_streams_outputs_and_channels(tmp_path: Path) -> None:
    """`a` is two streams side by side, `c` two channels; one output is added, one replaces."""
    path = package(
        tmp_path / "p.mlpackage",
        {"a": (1, 10, 1, 1), "c": (1, 2, 1, 1)},
        lambda mb, a, c: (
            mb.slice_by_index(x=a, begin=[0, 0, 0, 0], end=[1, 4, 1, 1], name="first"),
            mb.mul(x=c, y=10.0, name="second"),
        ),
    )
    entry = {
        "takes": {"a": ["x", "y"], "c": "y[1:3]"},
        "adds": {"first": "x"},
        "gives": {"second": "z"},
        "times": "y[0]",
    }
    layout = laid_out(path, entry)
    wire = layout.wire()
    assert wire.takes == ("x", "y", "y[1:3]")
    assert (wire.gives, wire.mode, wire.more) == ("z", "set", (Branch("x", "add", 4),))
    y = np.arange(36, dtype=np.float32).reshape(6, 6)
    streams = {"x": ROWS, "y": y}
    sequence = ShardSequence(layout.load(CpuBackend(), path), layout, 1)  # type: ignore[arg-type]
    apply_output(streams, wire, sequence(shard_input(streams, wire)))
    assert np.array_equal(streams["z"], 10 * y[:, 1:3] * y[:, :1])
    assert np.array_equal(streams["x"], ROWS + ROWS * y[:, :1])


def test_an_output_enters_the_next_call(tmp_path: Path) -> None:
    path = package(
        tmp_path / "p.mlpackage",
        {"a": (1, 4), "before": (1, 4)},
        lambda mb, a, before: (
            mb.add(x=a, y=before, name="b"),
            mb.identity(x=a, name="after"),
        ),
    )
    entry = {**PLAIN, "feedback": {"after": "before"}}
    layout, result = run(path, entry)
    assert layout.sees == "state"
    assert np.array_equal(result, ROWS + np.vstack([np.zeros(4), ROWS[:-1]]))


def test_ids_enter_as_integers(tmp_path: Path) -> None:
    path = package(
        tmp_path / "p.mlpackage", {"a": (1, 4)}, lambda mb, a: mb.mul(x=a, y=2, name="b"), "int32"
    )
    assert np.array_equal(run(path, PLAIN)[1], 2 * ROWS)


def test_what_follows_from_the_position_needs_a_table(tmp_path: Path) -> None:
    path = package(
        tmp_path / "p.mlpackage",
        {"a": (1, 4), "at": (1, 1)},
        lambda mb, a, at: mb.add(x=a, y=at, name="b"),
    )
    with pytest.raises(ExecutionError, match=r"nothing in the chain enters the input 'at'; name"):
        laid_out(path, PLAIN)
    _, result = run(path, PLAIN, at=Input(kind="positions"))
    assert np.array_equal(result, ROWS + np.arange(6)[:, None])


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"takes": {"z": "x"}, "gives": {"b": "x"}}, "has no input 'z', which its place in"),
        ({"takes": {"a": "x"}, "gives": {"z": "x"}}, "has no output 'z', which its place in"),
        ({"takes": {"a": "y[4:8]"}, "gives": {"b": "x"}}, "'y\\[4:8\\]' is no part of the stream"),
        ({"takes": {"a": "y"}, "gives": {"b": "x"}}, "that enters 'a' has 6 channels, and its"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    tmp_path: Path, entry: dict[str, Any], sentence: str
) -> None:
    path = doubling(tmp_path, (1, 4))
    with pytest.raises(ExecutionError, match=sentence):
        laid_out(path, entry)
