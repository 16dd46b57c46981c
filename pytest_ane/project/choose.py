"""Which model a command is for, which models are whole stacks, and min-cosine for some shards."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pytest_ane.manifest import Manifest, Model, Shard, select
from pytest_ane.manifest.ids import nearest
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.models.families.registry import get_family


def choose_model(manifest: Manifest, name: str | None, *, stacks: bool = False) -> Model:
    """The model of a name, or the only one (of whole `stacks`); `ManifestError` without one."""
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


@dataclass(frozen=True)
class Threshold:
    """What stands in place of policies' min-cosine: as written, and by shard's qualified id."""

    text: str
    values: Mapping[str, float]

    def __str__(self) -> str:
        """`min-cosine 0.97 for all`, or `min-cosine L27:0.95,head*:0.98`."""
        bare = ":" not in self.text and "," not in self.text
        return f"min-cosine {self.text}{' for all' if bare else ''}"

    def override(self, shard: Shard) -> Shard:
        """The shard with its own, for all its outputs, if it is one of these."""
        if shard.qualified not in self.values:
            return shard
        own = shard.policy.fidelity
        outputs = {
            name: output.model_copy(update={"min_cosine": None})
            for name, output in own.outputs.items()
        }
        update = {"min_cosine": self.values[shard.qualified], "outputs": outputs}
        policy = shard.policy.model_copy(update={"fidelity": own.model_copy(update=update)})
        return shard.model_copy(update={"policy": policy})


def read_threshold(manifest: Manifest, text: str, option: str) -> Threshold:
    """Read `[shards:]number,...`; the last term that names a shard holds.

    `ManifestError`, which names `option`, for another form, number (0 to 1) or shard.
    """
    values: dict[str, float] = {}
    for shards, value in _terms(text, option):
        values |= {shard.qualified: value for shard in select(manifest, shards, option)}
    return Threshold(text, values)


def _terms(text: str, option: str) -> Iterator[tuple[str, float]]:
    for term in text.split(","):
        shards, colon, number = term.strip().rpartition(":")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not 0 < value <= 1 or (colon and not shards.strip()):
            raise ManifestError(
                f"{option}={text}: give a number above 0, up to 1, or one for each of some shards, "
                "such as L27:0.95,head*:0.98."
            )
        yield shards.strip() or "all", value
