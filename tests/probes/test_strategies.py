"""`pytest_ane.probes.strategies`: the kinds of inputs for hypothesis."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import find, given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.probes.strategies import inputs


@given(inputs("ids", st.tuples(st.integers(1, 4), st.integers(1, 4)), count=7))
def test_ids_of_drawn_shapes(values: Array) -> None:
    assert values.ndim == 2
    assert values.dtype == np.int64
    assert np.all((values >= 0) & (values < 7))


def test_ids_may_come_twice() -> None:
    twice = find(inputs("ids", (2,), count=5), lambda values: values[0] == values[1])
    assert twice.shape == (2,)


def test_wrong_options_are_refused_at_once() -> None:
    with pytest.raises(ValidationError, match="belongs to kind = 'ids', not 'normal'"):
        inputs("normal", (2,), count=3)


def test_without_hypothesis_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ModuleNotFoundError, match="run: pip install hypothesis"):
        inputs("normal", (2,))


def test_the_example_of_the_docs(pytester: pytest.Pytester) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/testing.md").read_text()
    (code,) = re.findall(r'```python title="test_mask.py"\n(.*?)```', page, re.DOTALL)
    pytester.makepyfile(code)
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
