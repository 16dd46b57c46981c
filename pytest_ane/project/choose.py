"""Which model a command is for, and which models are whole stacks."""

from __future__ import annotations

from collections.abc import Collection

from pytest_ane.manifest import Manifest, Model
from pytest_ane.manifest.ids import nearest
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.models.families.registry import get_family


def choose_model(manifest: Manifest, name: str | None, *, stacks: bool = False) -> Model:
    """The model of a name, or the only one; with `stacks` among whole stacks alone.

    `ManifestError` where there is none; or several, without a name.
    """
    models = [model for model in manifest.models if not stacks or is_stack(model)]
    names, file = [model.name for model in models], manifest.path.name
    kind = " that a family or a chain wires together up to the logits" if stacks else ""
    if name is None:
        if len(models) == 1:
            return models[0]
        if not models:
            raise ManifestError(f"{file} has no model{kind}.")
        raise ManifestError(
            f"{file} has {len(names)} models{kind}; name one of them: {', '.join(names)}."
        )
    if name not in names:
        raise ManifestError(f"{file} has no model {name!r}{kind}; {nearest(name, names)}.")
    return models[names.index(name)]


def is_stack(model: Model) -> bool:
    """Whether a family, or a chain of the manifest, wires the model's shards up to a head."""
    if not model.family:
        return bool(model.chain)
    try:
        return any(wire.is_head for wire in get_family(model.family).wiring(model.ids))
    except ManifestError as error:
        raise ManifestError(f"{model.name}: {error}") from None


def check_behaviour(model: Model) -> None:
    """Raise `ManifestError` for a policy of behaviour that no run can ask: no shard is a head."""
    if model.family and model.policy.behaviour.model_fields_set and not is_stack(model):
        raise ManifestError(
            f"{model.name}: policy.behaviour is never asked, for 'shards' names no head and so "
            "nothing gives logits; add the heads to 'shards', or take the policy out."
        )


def is_complete(model: Model, selected: Collection[str]) -> bool:
    """Whether a stack's every shard is selected, by qualified id."""
    return all(shard.qualified in selected for shard in model.shards) and is_stack(model)
