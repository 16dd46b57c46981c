"""Constants in the form operations take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor.folding import constant
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.packages import doubling


def taken(tmp_path: Path, value: Any, dtype: str) -> Any:
    program = doubling()
    program.const("c", value, dtype)
    model = read_model(program.save(tmp_path))
    operation = next(op for op in model.program.walk() if op.name == "c")
    return constant(model, operation.attributes["val"])


@pytest.mark.parametrize(
    ("value", "dtype", "kind"),
    [(2, "INT32", int), (0.5, "FLOAT16", float), (True, "BOOL", bool), ("same", "STRING", str)],
)
def test_scalars_are_python_values(tmp_path: Path, value: Any, dtype: str, kind: type) -> None:
    found = taken(tmp_path, value, dtype)
    assert type(found) is kind
    assert found == value


def test_fp16_is_carried_as_float32(tmp_path: Path) -> None:
    found = taken(tmp_path, [0.1, 65504], "FLOAT16")
    assert found.dtype == np.float32
    assert found.tolist() == [0.0999755859375, 65504]


def test_integers_keep_their_type(tmp_path: Path) -> None:
    assert taken(tmp_path, [1, 2], "INT32").dtype == np.int32


def test_weights_come_from_the_file(tmp_path: Path) -> None:
    program = doubling()
    program.blob("c", "UINT4", (3,), bytes.fromhex("2103"))
    model = read_model(program.save(tmp_path))
    operation = next(op for op in model.program.walk() if op.name == "c")
    assert constant(model, operation.attributes["val"]).tolist() == [1, 2, 3]
