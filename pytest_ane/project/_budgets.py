"""Error budgets of shards: measured when a shard is built, and kept in the cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pytest_ane.backends import Backend, CpuBackend
from pytest_ane.make import Artifact, Cache
from pytest_ane.make.shard import artifact_key, converted_package
from pytest_ane.manifest import Shard, Uncompressed
from pytest_ane.manifest.inputs import questions
from pytest_ane.mlprogram.digests import key_digest, tree_digest
from pytest_ane.mlprogram.errors import CacheError
from pytest_ane.probes.cases import Case
from pytest_ane.probes.domains import SAMPLER
from pytest_ane.probes.error_budget import BUDGET_VERSION, ErrorBudget, measure_budget
from pytest_ane.probes.recording import RECORDING_VERSION
from pytest_ane.probes.seeded import GENERATOR
from pytest_ane.project.models import Opened, OpenModel

_FILE = "budget.json"
_RECORD = TypeAdapter(ErrorBudget)
_NO_PACKAGE = (
    "no uncompressed program is named, so algebra and compression could not be told apart; add "
    'uncompressed = "x-fp16.mlpackage" to the shard, be it the reference once more'
)


def own_budget(
    cache: Cache,
    shard: Shard,
    artifact: Artifact,
    cases: Callable[[Backend], list[Case]],
    identity: dict[str, Any],
) -> ErrorBudget | str:
    """The error budget of a package of the user's own, or why there is none.

    `cases` gives the shard's probes with what its reference makes of them where a backend runs it;
    `identity` is of the family's model, where the reference is that.
    """
    # An artifact without compressed weights may have been made of ones that were: who knows that it
    # is its own uncompressed form names it.
    if shard.uncompressed is None:
        return _NO_PACKAGE
    plain = shard.uncompressed
    reference = shard.reference if isinstance(shard.reference, Path) else None
    digest = tree_digest(plain)
    itself = reference is not None and reference.is_dir() and tree_digest(reference) == digest
    key = {
        "artifact": artifact.digest,
        "uncompressed": digest,
        "reference": reference and tree_digest(reference),
        "source": identity,
        **({"function": shard.function} if shard.function else {}),
        **_probed(shard),
    }

    def measured() -> ErrorBudget:
        compressed = None if digest == artifact.digest else artifact.path
        # A reference in fp16 is rounded too: in float32 it is held to the same bound.
        answered = cases(CpuBackend("float32"))
        return measure_budget(
            plain, compressed, answered, function=shard.function, against_itself=itself
        )

    return _kept(cache, key, measured, shard.qualified)


def built_budget(
    cache: Cache,
    model: Opened,
    shard: Shard,
    compressed: Path,
    cases: Callable[[], list[Case]],
    plain: Path | None = None,
) -> ErrorBudget:
    """The error budget of a shard that is built, from the cache or measured now.

    `plain` is its program before compression; converted once more where it is needed and gone.
    """
    key = {
        "artifact": artifact_key(shard, model.identity),
        "prompts": model.prompt_spec
        if isinstance(model, OpenModel) and shard.probes.of_prompts
        else [],
        **_probed(shard),
    }

    def measured() -> ErrorBudget:
        package = plain or converted_package(shard, model.language_model)
        asked = isinstance(shard.requested, Uncompressed)
        return measure_budget(package, None if asked else compressed, cases())

    return _kept(cache, key, measured, shard.qualified)


def _probed(shard: Shard) -> dict[str, Any]:
    return {
        "budget": BUDGET_VERSION,
        "recording": RECORDING_VERSION,
        "generator": GENERATOR,
        "probes": shard.probes.model_dump(mode="json"),
        "inputs": [SAMPLER, questions(shard.inputs)],
        "shape": [shard.max_tokens, shard.context],
        **({"ports": shard.model_dump(mode="json", include={"ports"})} if shard.ports else {}),
    }


def _kept(
    cache: Cache, key: dict[str, Any], measure: Callable[[], ErrorBudget], subject: str
) -> ErrorBudget:
    def make(folder: Path) -> None:
        (folder / _FILE).write_text(json.dumps(asdict(measure())))

    folder = cache.get_or_make("budgets", key_digest(key), make, subject)
    try:
        return _RECORD.validate_python(json.loads((folder / _FILE).read_text()))
    except (OSError, ValueError) as error:
        raise CacheError(
            f"{folder / _FILE} is damaged ({error}); delete the folder {folder} and run again."
        ) from error
