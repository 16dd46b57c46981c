"""`pytest-ane run`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_ane.cli.options import add_arithmetic, add_budget, add_function
from pytest_ane.cli.output import Output
from pytest_ane.mlprogram.arithmetic import SIMULATED, label

HELP = "run a model on this machine's CPU, without Core ML"
EXAMPLE = "pytest-ane run encoder.mlpackage --input x=x.npy --out y.npy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The package, its inputs, and files for its outputs."""
    parser.add_argument("package", type=Path, help="an .mlpackage or .mlmodelc")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="an input from a .npy file or a picture; or one FILE.npz of all",
    )
    parser.add_argument(
        "--out",
        action="append",
        default=[],
        metavar="FILE",
        help="y.npy for the only output, NAME=y.npy for any value, all.npz for all outputs; "
        "y.png for an image",
    )
    parser.add_argument(
        "--precision",
        choices=("as-typed", "float32", "float64"),
        default="as-typed",
        help="round fp16 results as their types say (default), or compute wider throughout",
    )
    add_arithmetic(parser)
    parser.add_argument(
        "--scale-after",
        action="store_true",
        help="with --arithmetic ane: scale sums of quantized weights' codes after accumulation, "
        "which is inferred",
    )
    add_function(parser)
    add_budget(parser)


def run(options: argparse.Namespace) -> Output:
    """Run a model once; write the outputs to files, and summarise their values."""
    from pytest_ane.mlprogram.executor import open_session
    from pytest_ane.mlprogram.model import read_any
    from pytest_ane.report.arithmetic import rules_lines
    from pytest_ane.tools._arrays import output_files, read_inputs, shown_output, write_outputs

    model = read_any(options.package, function=options.function)
    session = open_session(
        model,
        options.precision,
        arithmetic=options.arithmetic,
        scale_after=options.scale_after,
    )
    outputs = session.model.output_names
    files = output_files(options.out, outputs)
    state = session.make_state() or None
    results = session.predict(read_inputs(options.input), state, outputs=_names(outputs, files))
    results = {name: shown_output(session.model, name, x) for name, x in results.items()}
    write_outputs(files, results)
    data = {name: _statistics(value) for name, value in results.items()}
    for name, statistics in data.items():
        yield f"{name}: {_shown(statistics)}"
    how = f" ({options.precision})"
    if (rules := session.rule_shares) is not None:
        yield from rules_lines(rules)
        after = ", scales after accumulation (inferred)" if options.scale_after else ""
        how = f" as {SIMULATED}{after}"
    yield f"run by pytest-ane's CPU executor{how}, not by Core ML"
    return {"precision": options.precision, "arithmetic": label(options.arithmetic),
            **({"rules": rules} if rules else {}), "outputs": data}  # fmt: skip


def _names(outputs: Sequence[str], files: Mapping[str, list[Path]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*outputs, *files)))


def _statistics(value: Any) -> dict[str, Any]:
    """Type, shape and spread of a tensor; another value as its text."""
    import numpy as np

    if not isinstance(value, np.ndarray):
        return {"value": str(value)}
    head = {"dtype": str(value.dtype), "shape": list(value.shape), "size": value.size}
    if value.size == 0 or value.dtype.kind not in "fiub":
        return head
    finite = value[np.isfinite(value)]
    head["not_finite"] = value.size - finite.size
    if finite.size == 0:
        return head
    mean = float(finite.mean(dtype=np.float64))
    return head | {"min": finite.min().item(), "max": finite.max().item(), "mean": mean}


def _shown(statistics: Mapping[str, Any]) -> str:
    """`float32 [1, 8] · -1.25 to 3.5 · mean 0.1`, and how many values are not finite."""
    if "value" in statistics:
        return str(statistics["value"])
    text = f"{statistics['dtype']} {statistics['shape']}"
    if "mean" in statistics:
        text += " · {min:.6g} to {max:.6g} · mean {mean:.6g}".format_map(statistics)
    if statistics.get("not_finite"):
        text += " · {not_finite} of {size} NaN or infinite".format_map(statistics)
    return text
