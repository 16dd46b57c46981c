"""Steps that run as one give what they give one by one, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.build.coremltools_quiet import import_coremltools
from pytest_ane.reference import Session, fusing
from pytest_ane.reference.fusing import Overwrite
from pytest_ane.reference.halves import kernels
from tests.reference.programs import build, session

pytestmark = pytest.mark.skipif(kernels() is None, reason="no fp16 in this processor")

SIZES = {"cache": (3, 1, 64, 32), "kept": (1, 1, 1, 32), "new": (3, 1, 64, 1), "at": (1, 1, 1, 32)}


def package(path: Path, sizes: dict[str, tuple[int, ...]]) -> Session:
    """`old = cache kept; fresh = new at; sum = old + fresh`, all fp16."""
    import_coremltools()
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    def body(cache: Any, kept: Any, new: Any, at: Any) -> Any:
        old = mb.mul(x=cache, y=kept, name="old")
        return mb.add(x=old, y=mb.matmul(x=new, y=at, name="fresh"), name="sum")

    specs = [mb.TensorSpec(size, dtype=types.fp16) for size in sizes.values()]
    return session(build(path, specs, body))


def numbers(sizes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = {name: rng.standard_normal(size).astype(np.float16) for name, size in sizes.items()}
    found["cache"].flat[:4] = np.inf, -np.inf, np.nan, 65504
    return found


def session_of(fast: Session) -> Session:
    """The same session, its steps run one by one."""
    slow = Session(fast.model)
    slow.plan = replace(slow.plan, fused=None)
    return slow


@pytest.fixture(scope="module")
def overwriting(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return package(tmp_path_factory.mktemp("fused") / "overwrite.mlpackage", SIZES)


def test_a_position_put_into_a_cache_is_one_step(
    overwriting: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [type(step) for step in overwriting.plan.fused or ()] == [Overwrite]
    inputs = numbers(SIZES)
    expected = session_of(overwriting).predict(inputs)["sum"]
    monkeypatch.delattr("pytest_ane.reference.steps.Compute.run")
    np.testing.assert_array_equal(overwriting.predict(inputs)["sum"], expected)


@pytest.mark.parametrize("others", [(1, 0), (0, 1), (1, 1), (0, 0)])
def test_masks_of_0_and_1(overwriting: Session, others: tuple[int, int]) -> None:
    """Only where a position is taken from both is there a sum to round."""
    mask = np.random.default_rng(1).integers(0, 2, SIZES["at"]).astype(np.float16)
    kept, at = mask.copy(), 1 - mask
    kept[..., 5], at[..., 5] = others
    inputs = numbers(SIZES) | {"kept": kept, "at": at}
    expected = session_of(overwriting).predict(inputs)["sum"]
    np.testing.assert_array_equal(overwriting.predict(inputs)["sum"], expected)


def test_products_that_are_asked_for_are_there(overwriting: Session) -> None:
    inputs, names = numbers(SIZES), ["old", "fresh", "sum"]
    found = overwriting.predict(inputs, outputs=names)
    expected = session_of(overwriting).predict(inputs, outputs=names)
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize(
    "other",
    [
        {"new": (3, 1, 64, 2), "at": (1, 1, 2, 32)},
        {"new": (1, 1, 64, 1)},
        {"kept": (3, 1, 64, 32)},
        {"kept": (1, 1, 1, 1)},
        {"at": (3, 1, 1, 32)},
    ],
)
def test_other_shapes_run_step_by_step(tmp_path: Path, other: dict[str, Any]) -> None:
    sizes = SIZES | other
    prepared, inputs = package(tmp_path / "other.mlpackage", sizes), numbers(sizes)
    arrays = [np.float32(inputs[name]) for name in sizes]
    assert fusing.overwritten(*arrays) is None
    expected = session_of(prepared).predict(inputs)["sum"]
    np.testing.assert_array_equal(prepared.predict(inputs)["sum"], expected)


def test_sums_without_rounding_are_no_such_step(overwriting: Session) -> None:
    for precision in ("float32", "float64"):
        steps = Session(overwriting.model, precision).plan.fused or ()
        assert not any(isinstance(step, Overwrite) for step in steps)


def test_a_mask_may_come_first() -> None:
    cache, kept, new, at = (np.float32(x) for x in numbers(SIZES).values())
    np.testing.assert_array_equal(
        fusing.overwritten(kept, cache, new, at), fusing.overwritten(cache, kept, new, at)
    )
