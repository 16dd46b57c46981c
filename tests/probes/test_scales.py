"""The edge of a package: up to which size of its inputs it is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb

from pytest_ane.backends.cpu import CpuBackend
from pytest_ane.manifest import Input, Probes
from pytest_ane.probes.cases import Case
from pytest_ane.probes.inputs import Domain
from pytest_ane.probes.package import package_cases
from pytest_ane.probes.scales import Edge, _between, find_edge
from tests.own_packages.subjects import Subject, Variant, half

F16 = np.float16
C = 16


def norm(x: Any) -> Any:
    squares = mb.reduce_mean(x=mb.mul(x=x, y=x), axes=[-1], keep_dims=True)
    return mb.mul(x=x, y=mb.rsqrt(x=squares, epsilon=F16(1e-5)))


def scaled_norm(x: Any) -> Any:
    largest = mb.reduce_max(x=mb.abs(x=x), axes=[-1], keep_dims=True)
    return norm(mb.real_div(x=x, y=mb.add(x=largest, y=F16(1e-3))))


def clipped(x: Any) -> Any:
    return mb.clip(x=x, alpha=F16(-100), beta=F16(100))


BODIES: dict[str, Any] = {
    "norm": lambda x, w: mb.matmul(x=norm(x), y=w),
    "scaled norm": lambda x, w: mb.matmul(x=scaled_norm(x), y=w),
    # The norm's loss is hidden by the residual path, and the output is finite.
    "block": lambda x, w: mb.add(x=x, y=mb.matmul(x=norm(x), y=w)),
    "scaled block": lambda x, w: mb.add(x=x, y=mb.matmul(x=scaled_norm(x), y=w)),
    "linear": lambda x, w: mb.matmul(x=x, y=w),
    "clipped": lambda x, w: mb.matmul(x=clipped(x), y=w),
    "exponential": lambda x, w: mb.matmul(x=mb.exp(x=x), y=w),
    "softmax": lambda x, w: mb.matmul(x=mb.softmax(x=x, axis=-1), y=w),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scales")


def saved(folder: Path, name: str, noise: float) -> Path:
    path = folder / f"{name}-{noise}.mlpackage"
    if not path.exists():

        def body(v: Variant, x: Any) -> Any:
            return mb.mul(x=BODIES[name](x, v.weight(C, C)), y=F16(1), name="y")

        each = Subject("s", "", body, {"x": half(4, C)}, {})
        each.save(Variant(each, "", noise), path)
    return path


def cases(artifact: Path, reference: Path | None) -> list[Case]:
    return package_cases(CpuBackend(), artifact, reference, Probes(kinds=("gaussian",)))


@pytest.mark.parametrize(
    ("name", "reference", "edge"),
    [
        ("norm", "scaled norm", Edge(255.0, "overflows", "fp16 overflows in mul_0")),
        ("norm", "", Edge(255.0, "overflows", "fp16 overflows in mul_0")),
        ("block", "scaled block", Edge(255.0, "overflows", "fp16 overflows in mul_0")),
        ("exponential", "", Edge(16.1, "overflows", "fp16 overflows in exp_0")),
        ("clipped", "", Edge(65504.0)),
        ("scaled norm", "scaled norm", Edge(65504.0)),
        ("scaled block", "scaled block", Edge(65504.0)),
        ("softmax", "softmax", Edge(65504.0)),
    ],
)
def test_where_fp16_gives_way(folder: Path, name: str, reference: str, edge: Edge) -> None:
    right = saved(folder, reference, 0.0) if reference else None
    artifact = saved(folder, name, 2e-3)
    found = find_edge(artifact, None, cases(artifact, right), right)
    assert found is not None
    assert replace(found, op=found.op.partition(" (")[0]) == edge


def test_another_function_departs_from_its_reference(folder: Path) -> None:
    artifact, right = saved(folder, "clipped", 2e-3), saved(folder, "linear", 0.0)
    found = find_edge(artifact, None, cases(artifact, right), right)
    assert found is not None
    assert found.how == "departs"
    assert 100 < found.holds < 400


def test_an_input_of_a_declared_range_is_not_scaled(folder: Path) -> None:
    artifact = saved(folder, "norm", 0.0)
    tables = {"x": Input(kind="normal")}
    drawn = package_cases(CpuBackend(), artifact, None, Probes(kinds=("gaussian",)), tables)
    assert find_edge(artifact, None, drawn) is None


def test_golden_tensors_are_scaled_where_one_input_alone_may_be_anything(folder: Path) -> None:
    artifact = saved(folder, "norm", 0.0)
    (case, *_), free = cases(artifact, None), Domain("default", None, "")
    golden = [replace(case, kind="golden", domains={})]
    found = find_edge(artifact, None, golden, golden={"x": free})
    assert found is not None
    assert (found.holds, found.how) == (255.0, "overflows")
    assert find_edge(artifact, None, golden, golden={"x": free, "mask": free}) is None


@pytest.mark.parametrize(
    ("edge", "found"),
    [
        (0.5, (0.0, 1.0)),
        (2.8, (2.79, 2.8)),
        (255.9, (255.0, 256.0)),
        (30_000.0, (29900.0, 30_000.0)),
    ],
)
def test_the_edge_is_found_by_bisection(edge: float, found: tuple[float, float]) -> None:
    low, high = _between(lambda size: size > edge)
    assert low == found[0]
    assert high == pytest.approx(found[1], rel=3e-3)
    assert _between(lambda size: False) == (65504.0, None)
