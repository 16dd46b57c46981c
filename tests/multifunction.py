"""Packages of several functions, made by coremltools: right ones, and ones with a fault in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.model import read_functions, read_model

FUNCTIONS = {"decode": 1, "verify4": 4}
"""Functions, and the positions that a call of each takes."""


def make(folder: Path) -> dict[str, Path]:
    """Packages by what they are, each of `decode` and `verify4` unless its name says otherwise.

    `reference` and `right` have nearly the same weights. `other` has other weights in `verify4`,
    `swapped` the weights of each function in the other, `ineligible` an operation in `verify4` that
    the ANE does not have. `verify4` of `ports` and `near-ports` takes `h` in place of `x`. `single`
    is `verify4` alone, `foreign` has functions of other names.
    """
    with converter_notes():
        ones = {
            name: _one(folder / f"{name}.mlpackage", **how)
            for name, how in {
                "decode": {"seed": 0, "length": 1},
                "verify": {"seed": 1, "length": 4},
                "near-decode": {"seed": 0, "length": 1, "factor": 1.001},
                "near-verify": {"seed": 1, "length": 4, "factor": 1.001},
                "swapped-decode": {"seed": 1, "length": 1},
                "swapped-verify": {"seed": 0, "length": 4},
                "tan-verify": {"seed": 1, "length": 4, "tangent": True},
                "h-verify": {"seed": 1, "length": 4, "takes": "h"},
                "near-h-verify": {"seed": 1, "length": 4, "takes": "h", "factor": 1.001},
            }.items()
        }
        pairs = {
            "reference": ("decode", "verify"),
            "right": ("near-decode", "near-verify"),
            "other": ("near-decode", "swapped-verify"),
            "swapped": ("swapped-decode", "swapped-verify"),
            "ineligible": ("near-decode", "tan-verify"),
            "ports": ("decode", "h-verify"),
            "near-ports": ("near-decode", "near-h-verify"),
        }
        packages = {
            name: save(folder / f"multi-{name}.mlpackage", {"decode": ones[a], "verify4": ones[b]})
            for name, (a, b) in pairs.items()
        }
        apart = {"first": ones["decode"], "second": ones["verify"]}
        packages["foreign"] = save(folder / "multi-foreign.mlpackage", apart)
    return packages | {"single": ones["verify"], "single-near": ones["near-verify"]}


def save(path: Path, functions: dict[str, Path], default: str = "") -> Path:
    """A package of the main functions of others, by name; the first is the default."""
    ct = import_coremltools()
    described = ct.utils.MultiFunctionDescriptor()
    for name, package in functions.items():
        described.add_function(str(package), "main", name)
    described.default_function_name = default or next(iter(functions))
    with converter_notes():
        ct.utils.save_multifunction(described, str(path))
    return path


def compiled(package: Path) -> Path:
    """The compiled twin next to a package."""
    twin = package.with_suffix(".mlmodelc")
    return (
        twin
        if twin.exists()
        else write_compiled(read_model(package), twin, read_functions(package))
    )


def _one(
    path: Path,
    *,
    seed: int,
    length: int,
    factor: float = 1.0,
    tangent: bool = False,
    takes: str = "x",
) -> Path:
    """A 1x1 convolution of 8 channels on `x [1, 8, 1, length]`, or on `h`."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    weight = np.random.default_rng(seed).standard_normal((8, 8, 1, 1)) * factor

    def of_x(x: Any) -> Any:
        y = mb.conv(x=x, weight=weight.astype(np.float32), name="projection")
        return mb.tan(x=y, name="tangent") if tangent else mb.identity(x=y, name="y")

    def of_h(h: Any) -> Any:
        return of_x(h)

    ports, opset = [mb.TensorSpec((1, 8, 1, length))], ct.target.iOS18
    ct.convert(
        mb.program(input_specs=ports, opset_version=opset)(of_x if takes == "x" else of_h),
        convert_to="mlprogram",
        minimum_deployment_target=opset,
        skip_model_load=True,
    ).save(str(path))
    return path
