"""One shard's artifact: the user's own package, or one built from its source and cached."""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch
from uuid import NAMESPACE_URL, uuid5

from pytest_ane.make.cache import Cache
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.make.distortion import compare_weights
from pytest_ane.make.record import PACKAGE, Artifact, BuildRecord
from pytest_ane.manifest import Shard, Uncompressed
from pytest_ane.mlprogram.blob import check_blobs
from pytest_ane.mlprogram.checks import stays_inside
from pytest_ane.mlprogram.digests import content_digest, key_digest, tree_digest
from pytest_ane.mlprogram.errors import BuildError, ProgramError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.package import parse_package
from pytest_ane.mlprogram.proto import canonical_bytes
from pytest_ane.models.families import Buildable, Conversion

Examine: TypeAlias = Callable[[Path, Path], None]
Step: TypeAlias = Callable[[str], None]
BUILD_VERSION = 8
"""Raised whenever a change in this package alters what is built."""
_OF_COREMLTOOLS = "com.github.apple.coremltools."
"""The metadata keys that coremltools 9.0 sets itself (`models/model.py`)."""


def build_shard(
    shard: Shard,
    cache: Cache,
    *,
    identity: dict[str, Any],
    model: Callable[[], Buildable],
    source: Artifact | None = None,
    examine: Examine = lambda plain, built: None,
    step: Step = lambda doing: None,
) -> Artifact:
    """The shard's artifact from the cache, built first if it is not there.

    One with an `artifact` of its own is only looked up. `identity` is what the model's weights and
    family depend on, part of the cache key; `model` opens it when something must be built. A
    `source`, the shard as `uncompressed` builds it, is compressed instead of converted once more,
    to the same bytes. `examine` is called with the uncompressed package and the built one, while
    both are there; `step` is told what is done next. `BuildError` where conversion or compression
    fails, or the disk is full.
    """
    if shard.artifact is not None:
        if not shard.artifact.exists():
            raise BuildError(
                f"{shard.qualified}: the artifact {shard.artifact} does not exist; "
                "check the path in shards.toml."
            )
        return Artifact(shard.artifact)
    key = artifact_key(shard, identity)
    folder = cache.get_or_make(
        "artifacts",
        key_digest(key),
        lambda folder: _build(shard, key, source or model(), folder, examine, step),
        subject=shard.qualified,
    )
    return Artifact.of_entry(folder)


def uncompressed(
    shard: Shard, cache: Cache, *, identity: dict[str, Any], model: Callable[[], Buildable]
) -> Artifact:
    """The shard as converted, all weights in fp16, from the cache or converted now."""
    plain = shard.model_copy(update={"compression": Uncompressed()})
    return build_shard(plain, cache, identity=identity, model=model)


def compressed(shard: Shard, source: Artifact, folder: Path) -> Artifact:
    """As `build_shard` with a source, into a folder of the caller's instead of the cache."""
    _build(shard, {}, source, folder)
    return Artifact.of_entry(folder)


def converted_package(shard: Shard, model: Buildable) -> Path:
    """A shard's uncompressed package among the temporary files."""
    return Path(_converted(shard, model).package_path)


def _converted(shard: Shard, model: Buildable) -> Any:
    with converter_notes():
        return convert(
            model.conversion(shard.id),
            max_tokens=shard.max_tokens,
            target=shard.target,
            subject=shard.qualified,
        )


def artifact_key(shard: Shard, identity: dict[str, Any]) -> dict[str, Any]:
    """Everything a built package depends on; its digest names the cache entry."""
    return {
        **identity,
        "build": BUILD_VERSION,
        "shard": shard.id,
        "max_tokens": shard.max_tokens,
        "context": shard.context,
        "target": shard.target,
        "compression": shard.requested.model_dump(mode="json"),
        "coremltools": version("coremltools"),
        "torch": version("torch"),
    }


def _build(
    shard: Shard,
    key: dict[str, Any],
    source: Artifact | Buildable,
    folder: Path,
    examine: Examine = lambda plain, built: None,
    step: Step = lambda doing: None,
) -> None:
    """Compress what was converted before, or is now; check it, measure it, and record it."""
    from pytest_ane.make.compress import compress

    start, errors, target = time.perf_counter(), dict[str, Any](), folder / PACKAGE
    if isinstance(source, Artifact):
        assert source.record is not None
        plain, description = source.path, source.record.description
    else:
        step("converting")
        converted, description = _converted(shard, source), source.description
        plain = folder / "converted.mlpackage"
        with converter_notes():
            # It tells what converted it, as the converter's own package does not.
            converted.save(str(plain))
    if not isinstance(shard.requested, Uncompressed):
        step("compressing")
    notes = compress(plain, shard.requested, target, shard.qualified, errors)
    canonicalize(target)
    # A package that the disk cut short must not become an entry.
    check_blobs(program := read_model(target))
    BuildRecord(
        key,
        description,
        notes,
        seconds=round(time.perf_counter() - start, 3),
        weights=compare_weights(program, read_model(plain), shard.requested, errors),
        shard=shard.qualified,
        digest=tree_digest(target),
    ).write(folder)
    step("measuring its errors")
    examine(plain, target)
    if plain.parent == folder:
        shutil.rmtree(plain)


def canonicalize(package: Path) -> None:
    """Rewrite an `.mlpackage`'s model file and manifest in their one form; weights stay.

    Two builds would differ in the random identifiers of `Manifest.json`, the order of protobuf's
    maps, the day, and the kind of torch (`2.13.0+cpu`): evidence names files by digest, wherever a
    shard is built. Maps are sorted, and an item's identifier is the UUID (version 5) of its path
    and its content's digest. `ProgramError` where the package is damaged.
    """
    file, message = parse_package(package)
    # The metadata say it for people, the program's `buildInfo` says it again.
    metadata = message.description.metadata.userDefined
    metadata.pop(f"{_OF_COREMLTOOLS}conversion_date", None)
    if source := metadata.get(key := f"{_OF_COREMLTOOLS}source"):
        metadata[key] = source.partition("+")[0]
    if "buildInfo" in (attributes := message.mlProgram.attributes):
        for pair in attributes["buildInfo"].immediateValue.dictionary.values:
            texts = pair.value.immediateValue.tensor.strings.values
            texts[:] = [text.partition("+")[0] for text in texts]
    file.write_bytes(canonical_bytes(message))
    manifest = package / "Manifest.json"
    try:
        text = _identified(json.loads(manifest.read_text()), package / "Data")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ProgramError(
            f"{manifest}: damaged ({error!r:.200}); save the package again."
        ) from None
    manifest.write_text(text)


def _identified(manifest: dict[str, Any], data: Path) -> str:
    items, names = manifest["itemInfoEntries"], {}
    for old, item in items.items():
        if not stays_inside(name := item["path"]):
            raise ValueError(f"{name!r} lies outside the package")
        digest = content_digest(data / name)
        names[old] = str(uuid5(NAMESPACE_URL, f"{name} {digest}"))
    manifest["itemInfoEntries"] = {names[old]: item for old, item in items.items()}
    manifest["rootModelIdentifier"] = names[manifest["rootModelIdentifier"]]
    return json.dumps(manifest, indent=4, sort_keys=True) + "\n"


_TRACED = 2
"""Positions at tracing. More than one, or torch would specialise axes of length one."""

_STATES = 18
"""The first iOS whose programs have states (Core ML Tools guide, "Stateful Models")."""


def convert(conversion: Conversion, *, max_tokens: int, target: str, subject: str) -> Any:
    """Trace and convert to an ML Program in fp16 with a flexible T of 1 to `max_tokens`.

    The module is traced in the dtype of its parameters and states: fp16 is several times faster and
    leaner, for the converter checks every float32 constant for overflow. `BuildError` where torch
    cannot trace the module or coremltools cannot convert it.
    """
    import numpy as np
    import torch

    if conversion.states and int(target.removeprefix("iOS")) < _STATES:
        raise BuildError(
            f"{subject} keeps states, which target = {target!r} does not have; set target = "
            f"'iOS{_STATES}' in the manifest."
        )
    ct = import_coremltools()
    _number_symbols_anew()
    tensors = (*conversion.module.parameters(), *conversion.module.buffers())
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
    examples = tuple(
        torch.zeros([_TRACED if d == "T" else int(d) for d in port.shape], dtype=dtype)
        for port in conversion.inputs
    )
    flexible = ct.RangeDim(1, max_tokens, default=1)
    tensor = partial(ct.TensorType, dtype=np.float16)
    inputs = [
        tensor(port.name, tuple(flexible if d == "T" else d for d in port.shape))
        for port in conversion.inputs
    ]
    outputs = [tensor(port.name) for port in conversion.outputs]
    states = [ct.StateType(tensor(shape=p.shape), name=p.name) for p in conversion.states]
    try:
        with torch.no_grad():
            trace: Any = torch.jit.trace
            traced = trace(conversion.module.eval(), examples, check_trace=False)
        # It would check the whole program after each of a hundred passes, a third of the time.
        quiet: Any = {"validate": lambda self, **options: None, "__str__": lambda self: ""}
        with patch.multiple(ct.converters.mil.mil.Program, **quiet):
            converted = ct.convert(
                traced,
                inputs=inputs,
                outputs=outputs,
                states=states or None,
                convert_to="mlprogram",
                minimum_deployment_target=getattr(ct.target, target),
                compute_precision=ct.precision.FLOAT16,
                skip_model_load=True,
            )
        converted._mil_program.validate()
        # All weights would stay in memory with it, in cycles; the package on disk has them too.
        converted._mil_program = None
        del traced
        gc.collect()
        return converted
    except OSError:
        raise
    # Whatever the tracer or the converter raises, the person needs to know which shard it was.
    except Exception as error:
        cause = _not_a_number(conversion) or error
        why = " ".join(str(cause).split())
        raise BuildError(f"{subject} could not be converted: {why}") from error


def _number_symbols_anew() -> None:
    """Let coremltools call the first unknown length `is0` again, as in a new process.

    It keeps a Python type for every shape that it has met: 2 MB of each shard.
    """
    from coremltools.converters.mil.mil import program

    program.k_used_symbols.clear()
    program.k_num_internal_syms = 0


def _not_a_number(conversion: Conversion) -> str | None:
    """That a weight or state holds NaN, which the converter takes for weights that do not match."""
    module = conversion.module
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    name = next((name for name, tensor in tensors.items() if bool(tensor.isnan().any())), None)
    if name in {state.name for state in conversion.states}:
        return f"its state {name} is NaN after a call with zeros; let the module take zeros."
    return name and f"its weight {name} holds NaN; repair the source of its weights."
