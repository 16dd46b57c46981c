"""Ways to pass with nothing judged: each is an error, red or unproven, and says why."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.cli import main
from tests.plugin.conftest import Project

pytestmark = pytest.mark.slow
C = 16
F16 = np.float16
_RNG = np.random.default_rng(3)
WEIGHT = (_RNG.standard_normal((C, C)) / 4).astype(F16)
OTHER = (_RNG.standard_normal((C, C)) / 4).astype(F16)


def save(path: Path, body: Callable[[Any, Any], Any], flexible: bool = False) -> None:
    """A package of `x [1, 4, 16]`, or of 1 to 8 rows, with what `body(mb, x)` makes of it."""
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, Program, get_new_symbol, types

    from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools

    ct = import_coremltools()
    target, length = ct.target.iOS18, get_new_symbol() if flexible else 4
    with converter_notes():
        spec = partial(mb.TensorSpec, (1, length, C), types.fp16)
        with Function({"x": spec()}, target) as function:
            outputs = body(mb, function.inputs["x"])
            function.set_outputs([*outputs] if isinstance(outputs, tuple) else [outputs])
        program = Program()
        program.add_function("main", function)
        shape = (1, ct.RangeDim(1, 8, default=4), C)
        inputs = {"inputs": [ct.TensorType("x", shape)]} if flexible else {}
        ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=target,
            skip_model_load=True,
            **inputs,
        ).save(str(path))


def projection(mb: Any, x: Any) -> Any:
    return mb.tanh(x=mb.matmul(x=x, y=WEIGHT), name="y")


def another(mb: Any, x: Any) -> Any:
    return mb.tanh(x=mb.matmul(x=x, y=OTHER), name="y")


def two(mb: Any, x: Any) -> Any:
    return projection(mb, x), mb.mul(x=mb.matmul(x=x, y=OTHER), y=F16(1), name="z")


def answers(x: Any) -> Any:
    return np.tanh(x.astype(np.float32) @ WEIGHT.astype(np.float32))


def shard(project: Project, keys: str, policy: str = "") -> Project:
    return project.manifest(
        f'[models.own.shard.it]\nartifact = "it.mlpackage"\n{keys}\n'
        f"[models.own.shard.it.policy.fidelity]\n{policy}\n"
    )


def refused(project: Project, *patterns: str, unproven: bool = False) -> None:
    """The gate does not pass, and says why in these lines."""
    result = project.gate("-k", "fidelity", "-rA")
    assert result.ret, "green"
    text = "\n".join([*result.outlines, *result.errlines])
    for pattern in patterns:
        assert pattern in text, f"{pattern!r} is not said"
    assert not unproven or "UNPROVEN" in text


@pytest.fixture
def x() -> Any:
    return np.random.default_rng(0).standard_normal((1, 4, C)).astype(F16)


# Equal by construction.


def test_a_reference_that_is_the_artifact_in_another_folder(project: Project) -> None:
    save(project.path / "it.mlpackage", another)
    shutil.copytree(project.path / "it.mlpackage", project.path / "reference.mlpackage")
    refused(
        shard(project, 'reference = "reference.mlpackage"'), "the reference is the artifact itself"
    )


def test_golden_tensors_recorded_from_the_artifact(project: Project) -> None:
    save(project.path / "it.mlpackage", another)
    cache = ["--ane-cache", str(project.workshop.cache)]
    recorded = ["golden", "record", "it.mlpackage", "--out", "it.npz", *cache]
    assert main(recorded) == 0
    refused(shard(project, 'reference = "it.npz"'), "it.npz")


def test_a_reference_that_is_the_artifact_with_another_description(project: Project) -> None:
    from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools

    ct = import_coremltools()
    save(project.path / "it.mlpackage", another)
    with converter_notes():
        model = ct.models.MLModel(str(project.path / "it.mlpackage"), skip_model_load=True)
        model.short_description, model.author = "the reference", "another"
        model.save(str(project.path / "reference.mlpackage"))
    refused(shard(project, 'reference = "reference.mlpackage"'), "reference.mlpackage")


def test_a_reference_that_was_decompressed_from_the_artifact(project: Project) -> None:
    import coremltools.optimize.coreml as cto

    from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools

    ct = import_coremltools()
    save(project.path / "it.mlpackage", another)
    with converter_notes():
        plain = ct.models.MLModel(str(project.path / "it.mlpackage"), skip_model_load=True)
        config = cto.OpPalettizerConfig(mode="kmeans", nbits=4, weight_threshold=64)
        small = cto.palettize_weights(plain, cto.OptimizationConfig(config))
        shutil.rmtree(project.path / "it.mlpackage")
        small.save(str(project.path / "it.mlpackage"))
        cto.decompress_weights(small).save(str(project.path / "reference.mlpackage"))
    shard(project, 'reference = "reference.mlpackage"')
    result = project.gate("-k", "compression", "-rA")
    assert result.ret
    assert "Compression lost nothing" in "\n".join(result.outlines)


# Limits that nothing can miss.


@pytest.mark.parametrize("policy", ["min-cosine = -1\nmax-relative-l2 = 1e9", "min-cosine = -1"])
def test_limits_that_nothing_can_miss(project: Project, x: Any, policy: str) -> None:
    save(project.path / "it.mlpackage", another)
    np.savez(project.path / "it.npz", **{"0.in.x": x, "0.out.y": answers(x)})
    refused(shard(project, 'reference = "it.npz"', policy))


# Dead outputs.


@pytest.mark.parametrize(
    ("dead", "reference"),
    [*product(("zero", "constant", "one of two"), ("none", "dead.mlpackage"))],
)
def test_an_output_that_is_dead(project: Project, dead: str, reference: str) -> None:
    def body(gain: float) -> Callable[[Any, Any], Any]:
        def program(mb: Any, x: Any) -> Any:
            y = mb.mul(x=mb.matmul(x=x, y=WEIGHT), y=F16(0))
            if dead == "constant":
                y = mb.add(x=y, y=(gain * np.arange(C)).astype(F16))
            named = mb.mul(x=y, y=F16(gain), name="y")
            z = mb.mul(x=mb.matmul(x=x, y=OTHER), y=F16(gain), name="z")
            return (named, z) if dead == "one of two" else named

        return program

    save(project.path / "it.mlpackage", body(1.001))
    save(project.path / "dead.mlpackage", body(1))
    refused(shard(project, f'reference = "{reference}"'), "y")


# A part for the whole.


def test_golden_tensors_of_one_of_two_outputs(project: Project, x: Any) -> None:
    save(project.path / "it.mlpackage", two)
    np.savez(project.path / "it.npz", **{"0.in.x": x, "0.out.y": answers(x)})
    refused(shard(project, 'reference = "it.npz"'), "z", unproven=True)


def test_golden_tensors_of_one_length(project: Project, x: Any) -> None:
    save(project.path / "it.mlpackage", projection, flexible=True)
    np.savez(project.path / "it.npz", **{"0.in.x": x, "0.out.y": answers(x)})
    refused(shard(project, 'reference = "it.npz"'), "T", unproven=True)


# Nothing at all.


def test_golden_tensors_of_no_probe(project: Project) -> None:
    save(project.path / "it.mlpackage", projection)
    np.savez(project.path / "it.npz")
    refused(shard(project, 'reference = "it.npz"'), "holds no probe")


def test_golden_tensors_of_no_rows(project: Project) -> None:
    save(project.path / "it.mlpackage", projection, flexible=True)
    none: Any = np.zeros((1, 0, C), F16)
    np.savez(project.path / "it.npz", **{"0.in.x": none, "0.out.y": none})
    refused(shard(project, 'reference = "it.npz"'), "0.in.x is empty")


def test_no_golden_prompts(project: Project) -> None:
    project.llama()
    text = (project.path / "shards.toml").read_text()
    project.manifest(text.replace("ids = [5, 17, 40, 3, 22]", "ids = []"))
    result = project.gate("-k", "behaviour")
    assert result.ret
    assert "prompts" in "\n".join([*result.outlines, *result.errlines])


# References that agree with everything.


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reference_that_is_not_finite(project: Project, x: Any, value: float) -> None:
    save(project.path / "it.mlpackage", projection)
    y = answers(x)
    y[0, 1, 2] = value
    np.savez(project.path / "it.npz", **{"0.in.x": x, "0.out.y": y})
    refused(shard(project, 'reference = "it.npz"'), "0.out.y is")


def test_a_reference_package_that_gives_nan(project: Project) -> None:
    def lost(mb: Any, x: Any) -> Any:
        y = mb.matmul(x=x, y=WEIGHT)
        return mb.add(x=y, y=np.where(np.arange(C) == 3, np.nan, 0).astype(F16), name="y")

    save(project.path / "it.mlpackage", projection)
    save(project.path / "nan.mlpackage", lost)
    refused(shard(project, 'reference = "nan.mlpackage"'), "NaN")


# Names of nothing.


@pytest.mark.parametrize(
    ("keys", "policy"),
    [
        ("", "outputs = { nobody = { min-cosine = 0.99 } }"),
        ('inputs = { nobody = { kind = "normal" } }', ""),
        ('uncompressed = "nobody.mlpackage"', ""),
        ('function = "nobody"', ""),
    ],
)
def test_a_name_of_nothing(project: Project, x: Any, keys: str, policy: str) -> None:
    save(project.path / "it.mlpackage", projection)
    np.savez(project.path / "it.npz", **{"0.in.x": x, "0.out.y": answers(x)})
    reference = 'reference = "it.npz"'
    if "inputs" in keys:
        save(project.path / "other.mlpackage", another)
        reference = 'reference = "other.mlpackage"'
    refused(shard(project, f"{reference}\n{keys}", policy), "nobody")


# Nobody asks.


@pytest.mark.parametrize("options", [["-k", "nobody"], ["--deselect", "gates"], ["-m", "nobody"]])
def test_everything_is_deselected(project: Project, options: list[str]) -> None:
    save(project.path / "it.mlpackage", projection)
    shard(project, 'reference = "none"')
    selected = ["-m", "gate"] if "-m" not in options else []
    result = project.run("--ane-shards=all", *selected, *options)
    assert result.ret
