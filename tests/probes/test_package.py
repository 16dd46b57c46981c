"""Probes of packages without a family: wrong ones are red, right ones green."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_ane.backends import CpuBackend
from pytest_ane.gates.fidelity._measure import coverage, inputs_covered
from pytest_ane.gates.fidelity._records import Covered
from pytest_ane.make.coremltools_quiet import import_coremltools
from pytest_ane.manifest import Input, Probes
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import DType, Feature
from pytest_ane.probes.domains import Sampler
from pytest_ane.probes.inputs import Domain
from pytest_ane.probes.package import package_cases, seeded_inputs
from tests.mlprogram.executor.programs import build
from tests.probes import packages
from tests.probes.packages import save
from tests.probes.test_states import Attention, convert

PROBES = Probes(kinds=("gaussian",), count=2)
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((256, 16)).astype(np.float32)
WEIGHT = RNG.standard_normal((8, 8)).astype(np.float32)


def saved(path: Path, shape: tuple[int, ...], kind: str, body: Callable[[Any, Any], Any]) -> Path:
    """A package of one input `x`."""
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    spec = mb.TensorSpec(shape, getattr(types, kind))
    return build(path, [spec], lambda x: body(mb, x))


def embedding(path: Path, table: np.ndarray, length: int = 8) -> Path:
    return saved(
        path, (1, length), "int32", lambda mb, x: mb.gather(x=table, indices=x, name="rows")
    )


def loudness(path: Path, weight: np.ndarray) -> Path:
    def body(mb: Any, x: Any) -> Any:
        return mb.matmul(x=mb.log(x=x, name="level"), y=weight, name="y")

    return saved(path, (4, 8), "fp32", body)


def picture(path: Path, color: str, scale: float = 0.5, bias: float = 0.0) -> Path:
    """A package of one image input `x` of 6 by 8 pixels."""
    ct = import_coremltools()

    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.avg_pool2d(x * scale + bias, 2)

    shape = (1, 3 if color == "RGB" else 1, 6, 8)
    x = ct.ImageType("x", shape, color_layout=getattr(ct.colorlayout, color))
    return save(path, Scaled(), [x], torch.zeros(shape), outputs=[ct.TensorType("y")])


def status(
    artifact: Path, reference: Path | None, inputs: Mapping[str, Input] | None = None
) -> str:
    return packages.status(artifact, reference, PROBES, inputs)


@pytest.mark.slow
def test_an_embedding_without_its_rows_is_red(tmp_path: Path) -> None:
    right = embedding(tmp_path / "right.mlpackage", TABLE)
    near = embedding(tmp_path / "near.mlpackage", TABLE.astype(np.float16).astype(np.float32))
    empty, late = TABLE.copy(), TABLE.copy()
    empty[2:] = 0
    late[137] = 0
    assert status(near, right) == "passed"
    assert status(embedding(tmp_path / "empty.mlpackage", empty), right) == "failed"
    assert status(embedding(tmp_path / "late.mlpackage", late), right) == "failed"


def test_a_logarithm_s_input_is_no_fault_of_the_weights(tmp_path: Path) -> None:
    right = loudness(tmp_path / "right.mlpackage", WEIGHT)
    near = loudness(tmp_path / "near.mlpackage", WEIGHT.astype(np.float16).astype(np.float32))
    assert status(near, right) == "passed"
    assert status(near, None) == "passed"
    assert status(loudness(tmp_path / "bad.mlpackage", -WEIGHT), right) == "failed"
    negative = {"x": Input(kind="uniform", range=(-2.0, -1.0))}
    assert status(near, None, negative) == "failed"


def test_ids_are_all_drawn_where_64_calls_can(tmp_path: Path) -> None:
    package = embedding(tmp_path / "m.mlpackage", TABLE)
    cases = package_cases(CpuBackend(), package, None, PROBES)
    assert [case.name for case in cases[:3]] == [f"gaussian fixed shape #{n}" for n in range(3)]
    assert len(cases) == 256 / 8
    domain = cases[0].domains["x"]
    assert (domain.source, domain.count) == ("derived", 256)
    assert domain.sentence.startswith("ids: 256 rows of the table `")
    (covered,), (few,) = inputs_covered(cases), inputs_covered(cases[:2])
    assert (covered.what, covered.how) == ("input x", f"{domain.sentence}; 256 of 256 drawn")
    assert few.how == f"{domain.sentence}; 16 of 256 drawn"


def test_ids_that_do_not_fit_are_unproven_unless_a_sample_is_enough(tmp_path: Path) -> None:
    table = np.concatenate([TABLE, TABLE[:1]])
    package = embedding(tmp_path / "m.mlpackage", table, length=1)
    program = read_model(package)

    def covered(**inputs: Input) -> Covered:
        cases = package_cases(CpuBackend(), package, None, PROBES, inputs)
        return next(c for c in coverage(program, cases) if c.what == "input x")

    left = covered()
    assert not left.exercised
    assert left.how.endswith("; 2 of 257 drawn")
    assert 'kind = "ids", count = 257, sample = true' in left.remedy
    assert covered(x=Input(kind="ids", count=257, sample=True)).exercised
    assert covered(x=Input(kind="ids", count=256)).exercised


def test_the_manifest_s_inputs_are_drawn(tmp_path: Path) -> None:
    package = embedding(tmp_path / "m.mlpackage", TABLE)
    inputs = {"x": Input(kind="positions")}
    cases = package_cases(CpuBackend(), package, None, PROBES, inputs)
    assert [case.calls[0]["x"].tolist() for case in cases] == [[[*range(8)]]] * 2
    features = CpuBackend().load(package).model.inputs
    assert seeded_inputs(features, package, 0, inputs)["x"].dtype == "i4"
    (covered,) = inputs_covered(cases)
    assert (covered.how, covered.exercised) == ("positions: as the manifest says", True)


def test_a_sequence_goes_on_at_the_position_that_the_call_before_reached(tmp_path: Path) -> None:
    package = convert(Attention(), tmp_path / "m.mlpackage")
    inputs = {"write": Input(kind="one-hot", axis=1)}
    case, *_ = package_cases(CpuBackend(), package, None, PROBES, inputs)
    assert [call["write"].argmax() for call in case.calls] == [0, 1, 2, 1]
    assert len({call["x"].tobytes() for call in case.calls}) == 4


def test_a_call_of_several_positions_is_followed_by_the_next(tmp_path: Path) -> None:
    shapes = {"x": (1, 4), "m": (1, 1, 2, 6), "p": (2,)}
    known = {
        "x": Domain("default", None, ""),
        "m": Domain("manifest", Input(kind="causal-mask"), ""),
        "p": Domain("manifest", Input(kind="positions"), ""),
    }
    features = tuple(Feature(name, DType.FP16, shape) for name, shape in shapes.items())
    sampler = Sampler(features, tmp_path, known)
    assert sampler.positions(shapes) == 2
    later = sampler.call(shapes, "gaussian", (0,), 0, start=2)
    assert later["p"].tolist() == [2, 3]
    assert (later["m"][0, 0] == 0).sum(axis=1).tolist() == [3, 4]


@pytest.mark.drawn
@pytest.mark.parametrize(("color", "shape"), [("RGB", (6, 8, 3)), ("GRAYSCALE", (6, 8))])
def test_an_image_is_drawn_as_pixels(tmp_path: Path, color: str, shape: tuple[int, ...]) -> None:
    package = picture(tmp_path / "m.mlpackage", color)
    gradient, noise = package_cases(CpuBackend(), package, None, PROBES)
    pixels = gradient.calls[0]["x"]
    assert (pixels.shape, pixels.dtype) == (shape, np.uint8)
    assert (pixels.min(), pixels.max()) == (0, 255)
    assert not np.array_equal(pixels, noise.calls[0]["x"])
    assert next(inputs_covered([gradient])).how == "image: gradients and noise from 0 to 255"
    assert status(package, picture(tmp_path / "right.mlpackage", color, scale=0.5004)) == "passed"
    assert status(package, picture(tmp_path / "bad.mlpackage", color, bias=90)) == "failed"
    beyond = {"x": Input(kind="uniform", range=(0.0, 900.0))}
    with pytest.raises(ProgramError, match="is an image, whose pixels are 0 to 255; uniform goes"):
        package_cases(CpuBackend(), package, None, PROBES, beyond)


def test_every_picture_is_taken_once_at_least(tmp_path: Path) -> None:
    from PIL import Image

    package = picture(tmp_path / "m.mlpackage", "RGB")
    for i in range(5):
        Image.new("RGB", (20, 30), (10 * i, 0, 0)).save(tmp_path / f"{i}.png")
    files = [str(tmp_path / f"{i}.png") for i in range(5)]
    cases = package_cases(
        CpuBackend(), package, None, PROBES, {"x": Input(kind="image", files=files)}
    )
    assert [int(case.calls[0]["x"][0, 0, 0]) for case in cases] == [0, 10, 20, 30, 40]
    assert all(case.calls[0]["x"].shape == (6, 8, 3) for case in cases)
    assert next(inputs_covered(cases)).how == "image: as the manifest says"


def test_options_that_do_not_fit_are_told_of_the_input(tmp_path: Path) -> None:
    package = loudness(tmp_path / "m.mlpackage", WEIGHT)
    inputs = {"x": Input(kind="routing", active=9)}
    with pytest.raises(ProgramError) as error:
        package_cases(CpuBackend(), package, None, PROBES, inputs)
    assert str(error.value) == f"{package}: input 'x' has 8 experts along axis 1, and active = 9."
