"""Conversion of torch modules: dtypes, a flexible T, and states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.make.shard import convert
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.models.families import Conversion, Port

X = Port("x", (1, 2, "T", 1))
Y = Port("y", (1, 2, "T", 1))


class Double(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, 2, 1, 1), 2.0, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == self.weight.dtype
        return x * self.weight


class Sum(nn.Module):
    """Adds all positions that it ever saw."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 2, 1, 1, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        self.total[:] = self.total + x.sum(dim=2, keepdim=True)
        return x + self.total


def package(conversion: Conversion, path: Path, max_tokens: int = 4) -> Session:
    with converter_notes():
        converted = convert(conversion, max_tokens=max_tokens, target="iOS18", subject="m:L00")
        converted.save(str(path))
    return Session(read_model(path))


def ones(length: int) -> dict[str, Any]:
    return {"x": np.ones((1, 2, length, 1), np.float32)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_traced_in_the_dtype_of_its_parameters(tmp_path: Path, dtype: torch.dtype) -> None:
    session = package(Conversion(Double(dtype), (X,), (Y,)), tmp_path / "m.mlpackage")
    for length in (1, 4):
        assert session.predict(ones(length))["y"].ravel().tolist() == [2.0] * 2 * length
    assert not session.model.states


def test_a_buffer_becomes_a_state(tmp_path: Path) -> None:
    state = Port("total", (1, 2, 1, 1))
    session = package(Conversion(Sum(), (X,), (Y,), (state,)), tmp_path / "m.mlpackage")
    assert [s.name for s in session.model.states] == ["total"]
    kept = session.make_state()
    assert session.predict(ones(3), kept)["y"].ravel().tolist() == [4.0] * 6
    assert session.predict(ones(1), kept)["y"].ravel().tolist() == [5.0] * 2
    assert kept["total"].read().ravel().tolist() == [4.0, 4.0]


def test_the_shard_is_named_where_tracing_fails() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no such thing")

    conversion = Conversion(Broken(), (X,), (Y,))
    message = "m:L00 could not be converted: no such thing"
    with converter_notes(), pytest.raises(BuildError, match=message):
        convert(conversion, max_tokens=4, target="iOS18", subject="m:L00")


def test_states_need_a_target_that_has_them() -> None:
    conversion = Conversion(Sum(), (X,), (Y,), (Port("total", (1, 2, 1, 1)),))
    with pytest.raises(BuildError) as error:
        convert(conversion, max_tokens=4, target="iOS17", subject="m:L00")
    assert str(error.value) == (
        "m:L00 keeps states, which target = 'iOS17' does not have; set target = 'iOS18' in the "
        "manifest."
    )


def test_a_weight_that_is_nan_is_named() -> None:
    module = nn.Conv2d(2, 2, 1, bias=False)
    module.weight.data[1, 0] = float("nan")
    message = "m:L00 could not be converted: its weight weight holds NaN; repair the source"
    with converter_notes(), pytest.raises(BuildError, match=message):
        convert(Conversion(module, (X,), (Y,)), max_tokens=4, target="iOS18", subject="m:L00")


def test_the_program_is_checked_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from coremltools.converters.mil.mil import Program

    def refuse(program: Program, **options: Any) -> None:
        ops = [op.op_type for op in program.functions["main"].operations]
        raise ValueError(f"wrong at {ops[-1]}")

    monkeypatch.setattr(Program, "validate", refuse)
    conversion = Conversion(Sum(), (X,), (Y,), (Port("total", (1, 2, 1, 1)),))
    message = r"m:L00 could not be converted: wrong at add"
    with converter_notes(), pytest.raises(BuildError, match=message):
        convert(conversion, max_tokens=4, target="iOS18", subject="m:L00")
