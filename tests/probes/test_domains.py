"""What an input is drawn from where the manifest says nothing: what its program implies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.manifest import Input, Probes
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import DType, Feature
from pytest_ane.probes.domains import Slots, derived, domains, slots
from pytest_ane.probes.package import package_cases
from tests.mlprogram.executor.programs import build


def table(rows: int) -> Any:
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)


def integers(mb: Any, types: Any) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """By name: the shape of an int32 input, and what is done with it."""
    rows = partial(mb.gather, x=table(7))

    def moved(x: Any) -> Any:
        turned = mb.transpose(x=mb.expand_dims(x=x, axes=[2]), perm=[0, 2, 1])
        return rows(indices=mb.squeeze(x=turned, axes=[1]))

    def from_the_end(x: Any) -> Any:
        return rows(indices=mb.select(cond=mb.greater_equal(x=x, y=0), a=x, b=mb.add(x=x, y=7)))

    cases: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
        "gather": ((1, 4), lambda x: rows(indices=x)),
        "moved": ((1, 4), moved),
        "from the end": ((4,), from_the_end),
        "other axis": ((2,), lambda x: rows(indices=x, axis=1)),
        "along axis": ((2, 3), lambda x: mb.gather_along_axis(x=table(7), indices=x, axis=0)),
        "nd": ((5, 2), lambda x: mb.gather_nd(x=table(7), indices=x)),
        "one_hot": ((4,), lambda x: mb.one_hot(indices=x, one_hot_vector_size=9)),
        "two tables": (
            (4,), lambda x: mb.add(x=rows(indices=x), y=mb.gather(x=table(5), indices=x)),
        ),
        "arithmetic": ((4,), lambda x: mb.add(x=x, y=2)),
    }  # fmt: skip
    return {n: (mb.TensorSpec(shape, types.int32), body) for n, (shape, body) in cases.items()}


def package(path: Path, make: Callable[[Any, Any], tuple[Any, Callable[[Any], Any]]]) -> Path:
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    spec, body = make(mb, types)
    return build(path / "m.mlpackage", [spec], lambda x: body(x))


@pytest.mark.parametrize(
    ("case", "count"),
    [
        ("gather", 7), ("moved", 7), ("from the end", 7), ("other axis", 3), ("along axis", 7),
        ("nd", 3), ("one_hot", 9), ("two tables", 5),
    ],
)  # fmt: skip
def test_indices_are_below_the_extent_of_their_table(tmp_path: Path, case: str, count: int) -> None:
    path = package(tmp_path, lambda mb, types: integers(mb, types)[case])
    (domain,) = derived(path).values()
    assert (domain.source, domain.input) == ("derived", Input(kind="ids", count=count))
    what = "classes of one_hot" if case == "one_hot" else "rows of the table"
    assert domain.sentence.startswith(f"ids: {count} {what} `")


def test_of_other_integers_nothing_is_known(tmp_path: Path) -> None:
    path = package(tmp_path, lambda mb, types: integers(mb, types)["arithmetic"])
    assert derived(path) == {}


FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "log": lambda mb, x: mb.log(x=x),
    "log of a sum": lambda mb, x: mb.log(x=mb.add(x=mb.mul(x=x, y=2.0), y=1e-6)),
    "sqrt": lambda mb, x: mb.sqrt(x=mb.reshape(x=x, shape=[2, 2])),
    "rsqrt": lambda mb, x: mb.rsqrt(x=x),
    "root": lambda mb, x: mb.pow(x=x, y=0.3),
    "inverse": lambda mb, x: mb.inverse(x=x),
    "divisor": lambda mb, x: mb.real_div(x=1.0, y=x),
}
UNKNOWN: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda mb, x: mb.relu(x=x),
    "square": lambda mb, x: mb.pow(x=x, y=2.0),
    "log of a square": lambda mb, x: mb.log(x=mb.add(x=mb.mul(x=x, y=x), y=1e-6)),
    "log of a difference": lambda mb, x: mb.log(x=mb.sub(x=1.0, y=x)),
    "log of what is negated": lambda mb, x: mb.log(x=mb.mul(x=x, y=-1.0)),
}


def floats(path: Path, body: Callable[[Any, Any], Any]) -> Path:
    return package(path, lambda mb, types: (mb.TensorSpec((4,), types.fp32), lambda x: body(mb, x)))


@pytest.mark.parametrize("name", FLOATS)
def test_what_a_logarithm_or_root_takes_is_positive(tmp_path: Path, name: str) -> None:
    (domain,) = derived(floats(tmp_path, FLOATS[name])).values()
    assert domain.input == Input(kind="positive")


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_may_be_negative_is_not_positive(tmp_path: Path, name: str) -> None:
    assert derived(floats(tmp_path, UNKNOWN[name])) == {}


def test_an_arc_cosine_is_defined_between_minus_one_and_one(tmp_path: Path) -> None:
    (domain,) = derived(floats(tmp_path, lambda mb, x: mb.acos(x=x))).values()
    assert domain.input == Input(kind="uniform", range=(-1.0, 1.0))
    assert domain.sentence == "uniform: acos `acos_0` is defined from -1 to 1"


def test_a_slice_s_beginning_is_no_row_of_a_table(tmp_path: Path) -> None:
    """Row 6 of the table is there, but no slice of three rows from there on."""

    def body(mb: Any, x: Any) -> Any:
        rows = mb.slice_by_size(x=table(7), begin=mb.concat(values=[x, [0]], axis=0), size=[3, 3])
        return mb.add(x=rows, y=mb.gather(x=table(7), indices=x))

    path = package(
        tmp_path, lambda mb, types: (mb.TensorSpec((1,), types.int32), lambda x: body(mb, x))
    )
    (domain,) = derived(path).values()
    assert domain.input == Input(kind="ids", count=2)
    assert domain.sentence.startswith("ids: 0 and 1, for slice_by_size `")


def test_a_state_s_slices_begin_at_positions(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    def body(pos: Any, x: Any, cache: Any) -> Any:
        begin = mb.concat(values=[pos, [0]], axis=0)
        end = mb.concat(values=[mb.add(x=pos, y=1), [3]], axis=0)
        rows = mb.slice_update(x=mb.read_state(input=cache), update=x, begin=begin, end=end)
        mb.coreml_update_state(state=cache, value=rows)
        return mb.add(x=rows, y=mb.gather(x=table(7).astype(np.float16), indices=pos))

    specs = [
        mb.TensorSpec((1,), types.int32),
        mb.TensorSpec((1, 3), types.fp16),
        mb.StateTensorSpec((7, 3), types.fp16),
    ]
    path = build(tmp_path / "m.mlpackage", specs, lambda pos, x, cache: body(pos, x, cache))
    known = derived(path)
    assert [*known] == ["pos"]
    assert known["pos"].input == Input(kind="positions")
    assert known["pos"].sentence.startswith("positions: slice_update `")
    cases = package_cases(CpuBackend(), path, None, Probes(kinds=("gaussian",), count=1))
    assert [call["pos"].tolist() for call in cases[0].calls] == [[0], [1], [2], [1]]


def _at(mb: Any, at: Any, x: Any, cache: Any) -> Any:
    """`x` written to a slot of the cache."""
    begin = mb.concat(values=[np.int32([0]), at, np.int32([0])], axis=0)
    end = mb.concat(values=[np.int32([1]), mb.add(x=at, y=np.int32(2)), np.int32([3])], axis=0)
    rows = mb.slice_update(x=mb.read_state(input=cache), update=x, begin=begin, end=end)
    mb.coreml_update_state(state=cache, value=rows)
    return rows


def _scattered(mb: Any, at: Any, x: Any, cache: Any) -> Any:
    """The sum of `x` added to the slot that `at` indexes."""
    added = mb.reduce_sum(x=x, axes=[1], keep_dims=True)
    rows = mb.read_state(input=cache)
    rows = mb.scatter(data=rows, indices=at, updates=added, axis=1, validate_indices=False)
    mb.coreml_update_state(state=cache, value=rows)
    return mb.add(x=rows, y=added)


def _remainder(mb: Any, x: Any, n: Any, times: Any = None) -> Any:
    return mb.sub(x=x, y=mb.mul(x=mb.floor_div(x=x, y=n), y=n if times is None else times))


def _marked(mb: Any, at: Any, x: Any, cache: Any) -> Any:
    """`x` added to the slot whose number is the position."""
    mark = mb.cast(x=mb.equal(x=np.arange(8, dtype=np.int32), y=at), dtype="fp16")
    rows = mb.read_state(input=cache)
    rows = mb.add(x=rows, y=mb.expand_dims(x=mark, axes=[0, 2]))
    mb.coreml_update_state(state=cache, value=rows)
    return mb.add(x=rows, y=mb.reduce_sum(x=x))


def _rows(mb: Any, at: Any, x: Any, cache: Any, *, angles: bool) -> Any:
    rows = mb.gather(x=table(8).astype(np.float16), indices=at, axis=0)
    mb.coreml_update_state(state=cache, value=mb.read_state(input=cache))
    return mb.mul(x=x, y=rows) if angles else mb.matmul(x=rows, y=np.eye(3, dtype=np.float16))


POSITIONS: dict[str, tuple[Callable[..., Any], Slots]] = {
    "direct": (_at, Slots({"cache": 8}, 8, 2)),
    "later": (lambda mb, at, *more: _at(mb, mb.sub(x=at, y=np.int32(0)), *more),
              Slots({"cache": 8}, 8, 2)),
    "ring": (lambda mb, at, *more: _at(mb, mb.mod(x=at, y=np.int32(6)), *more),
             Slots({"cache": 8}, None, 2)),
    "ring as coremltools writes it": (
        lambda mb, at, *more: _at(mb, _remainder(mb, at, np.int32(6)), *more),
        Slots({"cache": 8}, None, 2),
    ),
    "no remainder": (
        lambda mb, at, *more: _at(mb, _remainder(mb, at, np.int32(6), np.int32(5)), *more),
        Slots({"cache": 8}, 8, 2),
    ),
    "clamped": (lambda mb, at, *more: _at(mb, mb.minimum(x=at, y=np.int32(6)), *more),
                Slots({"cache": 8}, None, 2)),
    "angles of a ring": (
        lambda mb, at, *more: _rows(mb, mb.mod(x=at, y=np.int32(8)), *more, angles=True),
        Slots({"cache": 8}, None),
    ),
    "marked": (_marked, Slots({"cache": 8}, 8)),
    "scattered": (_scattered, Slots({"cache": 8}, 8)),
    "angles": (partial(_rows, angles=True), Slots({"cache": 8}, 8)),
}  # fmt: skip


def stateful(path: Path, body: Callable[..., Any]) -> Path:
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    specs = [
        mb.TensorSpec((1,), types.int32),
        mb.TensorSpec((1, 2, 3), types.fp16),
        mb.StateTensorSpec((1, 8, 3), types.fp16),
    ]
    return build(path / "m.mlpackage", specs, lambda at, x, cache: body(mb, at, x, cache))


@pytest.mark.parametrize("name", POSITIONS)
def test_a_position_is_followed_to_the_slots_of_a_state(tmp_path: Path, name: str) -> None:
    body, leads = POSITIONS[name]
    path = stateful(tmp_path, body)
    known = domains(features(path), {}, path)
    assert known["at"].input == Input(kind="positions")
    assert slots(path, known) == leads


def test_rows_of_a_table_that_are_no_angles_are_ids(tmp_path: Path) -> None:
    path = stateful(tmp_path, partial(_rows, angles=False))
    assert derived(path)["at"].input == Input(kind="ids", count=8)


def features(path: Path) -> tuple[Feature, ...]:
    return read_model(path).inputs


def test_the_manifest_decides_first(tmp_path: Path) -> None:
    path = floats(tmp_path, FLOATS["log"])
    spec = Input(kind="uniform", range=(1.0, 2.0))
    known = domains(features(path), {"x": spec}, path)["x"]
    assert (known.source, known.input) == ("manifest", spec)
    assert domains(features(path), {}, path)["x"].source == "derived"


def test_nothing_known_is_the_probe_s_kind_or_zero_and_one(tmp_path: Path) -> None:
    path = floats(tmp_path, UNKNOWN["relu"])
    more = Feature("i", DType.INT32, (4,))
    known = domains((*features(path), more), {}, path)
    assert (known["x"].source, known["x"].input, known["x"].kind) == ("default", None, "probe")
    assert (known["i"].source, known["i"].input) == ("default", Input(kind="ids", count=2))


def test_a_name_that_is_no_input_is_told_with_those_that_are(tmp_path: Path) -> None:
    path = floats(tmp_path, FLOATS["log"])
    with pytest.raises(ProgramError) as error:
        domains(features(path), {"xx": Input(kind="normal")}, path)
    assert str(error.value) == (f"{path}: has no input 'xx', which the manifest names; nearest: x.")


def test_the_reference_decides_how_many_ids_there_are(tmp_path: Path) -> None:
    """An artifact whose table lost rows is probed at those, too."""

    def make(rows: int) -> Path:
        (folder := tmp_path / str(rows)).mkdir()
        return package(
            folder,
            lambda mb, types: (
                mb.TensorSpec((4,), types.int32),
                lambda x: mb.gather(x=table(rows), indices=x),
            ),
        )

    short, whole = make(5), make(7)
    assert domains(features(short), {}, short, whole)["x"].count == 7
