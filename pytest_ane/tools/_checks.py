"""Gates in one line, for tests of other projects: no manifest, no options, the same measures.

On a Mac Core ML answers; elsewhere placement is predicted, and the CPU executor runs the package.
What is returned, and every failure, says which. A package is `.mlpackage` or `.mlmodelc`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import tomlkit

from pytest_ane.gates.placement import Forecast, estimated_work
from pytest_ane.gates.placement.segmenter import predict_model
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Finding, Verdict, Where
from pytest_ane.manifest.load import package_ids, parse
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import BuildError, GoldenError
from pytest_ane.mlprogram.model import read_any, read_model
from pytest_ane.mlprogram.text import printable
from pytest_ane.mlprogram.weights import take_census
from pytest_ane.project.project import Project, default_backend
from pytest_ane.report.table import figure_text
from pytest_ane.report.verdict import failure, row

PathOrName: TypeAlias = "str | PathLike[str]"
Inputs: TypeAlias = Mapping[str, Any]
_SMALL = 2048
"""Elements up to which coremltools 9.0 leaves a weight as it is (`weight_threshold`)."""


_ARGUMENTS = {
    "policy.placement.allow-off": "allow", "policy.placement.off-ane": "off",
    "max-work-off-ane": "max_work_off_ane", "max-bytes": "max_bytes", "min-cosine": "min_cosine",
    "max-relative-l2": "max_relative_l2", "spec-version": "spec_version",
    " to the shard's table": "",
}  # fmt: skip
"""Keys of the manifest as these functions have them."""


def assert_on_ane(
    package: PathOrName,
    *,
    max_work_off_ane: float = 0.01,
    allow: Sequence[str] = (),
    off: Sequence[str] = (),
    spec_version: int | None = None,
    chip: str = "M4",
    function: str | None = None,
) -> str:
    """Assert that every convolution, product, norm, softmax and attention runs on the ANE.

    So does the rest but for `max_work_off_ane` of the estimated work. `allow` are names and types
    of ops that may be elsewhere, `off` those that must be; `spec_version` is the newest that the
    package may have; `chip` is whose costs predict. Returns the verdict's row; `AssertionError`
    where it is red or undecided.
    """
    __tracebackhide__ = True  # pytest shows the caller's line.
    asked = {"require": "predicted", "max-work-off-ane": max_work_off_ane}
    asked |= {"allow-off": [*allow], "off-ane": [*off]}
    asked |= {} if spec_version is None else {"spec-version": spec_version}
    return _assert("placement", package, function, {"placement": asked}, chip=chip)


def assert_close(
    package: PathOrName,
    reference: PathOrName | Callable[..., Any],
    inputs: Inputs | Sequence[Inputs] | None = None,
    *,
    min_cosine: float = 0.97,
    max_relative_l2: float | None = None,
    uncompressed: PathOrName | None = None,
    function: str | None = None,
) -> str:
    """Assert that a package agrees with its reference: a package, golden tensors, or a callable.

    `inputs` are arrays by the package's names, of one probe or of several. A callable is given them
    as keywords, a torch module as tensors in float32, and returns an output, several in order, or
    by name; a package is probed with seeded inputs. Returns and raises as `assert_on_ane`.
    """
    __tracebackhide__ = True
    with TemporaryDirectory(prefix="pytest-ane-") as folder:
        if callable(reference):
            golden = Path(folder) / "reference.npz"
            np.savez(golden, allow_pickle=False, **_answers(package, reference, inputs, function))
            reference = golden
        elif inputs is not None:
            raise GoldenError("inputs are for a reference that is called; leave them out.")
        keys = {"reference": _absolute(reference)}
        keys |= {} if uncompressed is None else {"uncompressed": _absolute(uncompressed)}
        limits = {"min-cosine": min_cosine, "max-relative-l2": max_relative_l2}
        asked = {name: limit for name, limit in limits.items() if limit is not None}
        return _assert("fidelity", package, function, {"fidelity": asked}, keys)


def assert_compressed(
    package: PathOrName,
    nbits: int = 4,
    *,
    max_bytes: int | str | None = None,
    keep: Sequence[str] = (),
    uncompressed: PathOrName | None = None,
    function: str | None = None,
) -> str:
    """Assert that every weight of more than 2,048 elements has at most `nbits` bits.

    But for those whose names `keep` names, with `*` and `?`. Beside `uncompressed`, what that cost
    each weight is judged too. Returns and raises as `assert_on_ane`.
    """
    __tracebackhide__ = True
    keys = {} if uncompressed is None else {"reference": _absolute(uncompressed)}
    asked = {} if max_bytes is None else {"max-bytes": max_bytes}
    large = [
        Finding("failed", f"{printable(w.name)} has {w.nbits} bits", Where(weight=w.name),
                "compress it, or name it in keep", f"have more than {nbits} bits")
        for w in take_census(read_model(Path(package), function=function)).weights
        if w.nbits > nbits and w.elements > _SMALL and len(w.shape) > 1
        and not any(fnmatchcase(w.name, pattern) for pattern in keep)
    ]  # fmt: skip
    return _assert("compression", package, function, {"compression": asked}, keys, large)


def _assert(
    name: str,
    package: PathOrName,
    function: str | None,
    policy: Mapping[str, Any],
    keys: Mapping[str, Any] | None = None,
    also: Sequence[Finding] = (),
    chip: str = "M4",
) -> str:
    """Ask one gate of a package; `AneError` where it or its reference cannot be read."""
    __tracebackhide__ = True
    path, gate = Path(package).absolute(), GATES[name]
    if not path.exists():
        raise BuildError(f"{path} does not exist; check the path.")
    table = {"artifact": str(path), "reference": "none", **(keys or {}), "policy": policy}
    table |= {} if function is None else {"function": function}
    document = {"models": {"package": {"shard": {package_ids([path])[0]: table}}}}
    manifest = parse(tomlkit.dumps(document), path.with_name("shards.toml"))
    (shard,) = manifest.shards
    project = Project(manifest, manifest.shards, backend_name=default_backend())
    with project.use():
        measured = gate.measure(project.open_shard(shard))
        if isinstance(measured, Forecast) and chip != "M4":
            predictions = predict_model(read_model(path, function=function), chip=chip)
            work = estimated_work(predictions)
            measured = replace(measured, predictions=predictions, work=work)
        verdict: Verdict = gate.judge(measured, gate.policy(shard.policy), shard)
    verdict = replace(verdict, subject=path.name, findings=(*also, *verdict.findings))
    if verdict.status == "passed":
        return row(verdict)
    answer = verdict.figure("answer")
    text = f"{failure(verdict)}\n    {figure_text(answer)}" if answer else failure(verdict)
    for key, argument in _ARGUMENTS.items():
        text = text.replace(key, argument)
    raise AssertionError(text)


def _answers(
    package: PathOrName,
    reference: Callable[..., Any],
    inputs: Inputs | Sequence[Inputs] | None,
    function: str | None,
) -> dict[str, Array]:
    """Golden tensors: what a callable makes of each probe's inputs, by the package's outputs."""
    if not inputs:
        raise GoldenError("a reference that is called needs inputs, arrays by the package's names.")
    names = [output.name for output in read_any(Path(package), function=function).outputs]
    tensors: dict[str, Array] = {}
    for i, probe in enumerate([inputs] if isinstance(inputs, Mapping) else inputs):
        made = reference(**(_as_torch(probe) if hasattr(reference, "state_dict") else probe))
        if not isinstance(made, Mapping):
            parts = made if isinstance(made, tuple | list) else (made,)
            if len(parts) != len(names):
                gives = f"the reference gives {len(parts)} outputs, and the package {len(names)}"
                raise GoldenError(f"{gives} ({', '.join(names)}); return them by name.")
            made = dict(zip(names, parts, strict=True))
        for kind, arrays in (("in", probe), ("out", made)):
            tensors |= {f"{i}.{kind}.{name}": _array(value) for name, value in arrays.items()}
    return tensors


def _as_torch(probe: Inputs) -> Inputs:
    """Inputs as a module of torch takes them, floats in float32."""
    import torch

    tensors = {name: torch.as_tensor(x) for name, x in probe.items()}
    return {n: x.float() if x.is_floating_point() else x for n, x in tensors.items()}


def _array(value: Any) -> Array:
    """Of numpy or torch, whose gradients are left behind; numbers as packages have them."""
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    whole = {"i": np.int32, "u": np.int32, "b": np.int32}.get(array.dtype.kind)
    return array.astype(whole or (array.dtype if array.dtype == np.float16 else np.float32))


def _absolute(path: PathOrName) -> str:
    return str(Path(path).absolute())
