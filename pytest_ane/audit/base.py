"""The base branch: whose manifest, policies, keys and gates judge a pull request."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_ane.audit.ledger import gate_files
from pytest_ane.evidence.verify import differences
from pytest_ane.gates.registry import GATES
from pytest_ane.manifest import Manifest, Model, load
from pytest_ane.manifest.load import parse
from pytest_ane.manifest.tables import FAMILIES
from pytest_ane.mlprogram.digests import file_digest, tree_digest
from pytest_ane.mlprogram.errors import ManifestError

_MOST = 20
_LONGEST = 80


@dataclass(frozen=True)
class Base:
    """A manifest in a checkout of the base branch, and the same in the pull request's.

    Attributes:
        path: the base's manifest.
        head: the pull request's.
    """

    path: Path
    head: Path

    @cached_property
    def manifest(self) -> Manifest:
        """The base's manifest over the pull request's files; keys of signers are the base's.

        Raises:
            ManifestError: it is wrong, or a file that it names is gone.
        """
        own = load(self.path)
        over = parse(self.path.read_text(encoding="utf-8-sig"), self.head)
        models = tuple(_with_policies(model, own.model_of(model.name)) for model in over.models)
        return over.model_copy(update={"models": models})

    def changes(self) -> list[str]:
        """What a pull request changes of what judges it: the manifest, and the files it names.

        Raises:
            ManifestError: a manifest is wrong.
        """
        own, theirs = load(self.path), load(self.head)
        lines = [_sentence(*changed) for changed in differences(_data(own), _data(theirs))]
        before, after = _files(own), _files(theirs)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                kept = "edited" if name in after else "removed"
                lines.append(f"{name} {kept if name in before else 'added'}")
        if len(lines) > _MOST:
            lines[_MOST:] = [f"and {len(lines) - _MOST} more"]
        return lines


@contextmanager
def base_of(where: str, head: Path) -> Iterator[Base]:
    """The base of a pull request's manifest.

    Args:
        where: a folder with a checkout of the base branch, or what git calls the commit.
        head: the pull request's manifest, in a checkout of it.

    Raises:
        ManifestError: there is no such folder, and git knows no such commit.
    """
    head = head.absolute()
    if (folder := Path(where)).is_dir():
        root = _root(head)
        yield Base(folder.absolute() / (head.relative_to(root) if root else head.name), head)
        return
    root = _root(head)
    if root is None:
        raise ManifestError(
            f"--policy-from={where} is no folder, and {head.parent} no git checkout."
        )
    done = subprocess.run(
        ["git", "archive", "--format=tar", "--end-of-options", where],
        cwd=root, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ManifestError(f"--policy-from={where}: git knows no such commit; fetch it.")
    with TemporaryDirectory(prefix="pytest-ane-") as temporary:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
            tar.extractall(temporary, filter="data")
        yield Base(Path(temporary) / head.relative_to(root), head)


def _root(manifest: Path) -> Path | None:
    """The checkout that a manifest lies in."""
    folders = (folder for folder in manifest.parents if (folder / ".git").exists())
    return next(folders, None)


def _with_policies(model: Model, own: Model) -> Model:
    """A model with the policies, and so the keys of signers, of the base's folder."""
    policies = {shard.id: shard.policy for shard in own.shards}
    shards = tuple(s.model_copy(update={"policy": policies[s.id]}) for s in model.shards)
    return model.model_copy(update={"shards": shards, "policy": own.policy})


def _data(manifest: Manifest) -> dict[str, Any]:
    """A manifest as plain data, paths relative to its folder, shards by id."""
    folder = str(manifest.path.absolute().parent)
    data: dict[str, Any] = {}
    for model in manifest.models:
        own = model.model_dump(mode="json", exclude={"shards"})
        own["shard"] = {s.id: s.model_dump(mode="json", exclude={"model"}) for s in model.shards}
        data[model.name] = _relative(own, folder)
    return data


def _relative(value: Any, folder: str) -> Any:
    if isinstance(value, dict):
        return {key: _relative(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_relative(inner, folder) for inner in value]
    return value.replace(f"{folder}/", "") if isinstance(value, str) else value


def _sentence(path: str, old: Any, new: Any) -> str:
    """`mini.shard.L00.policy.fidelity.min_cosine 0.97 -> 0.5`."""
    if old is None or new is None:
        return f"{path} {'added' if old is None else 'removed'}"
    return f"{path} {str(old)[:_LONGEST]} -> {str(new)[:_LONGEST]}"


def _files(manifest: Manifest) -> Mapping[str, str]:
    """Digests of files below a manifest's folder that decide a verdict, by name.

    Keys of signers, references, uncompressed packages, golden tensors, sources of weights, modules
    of families and builders with what they read, a chain's embedding, tokenizer and reference, and
    the project's own gates; the packages that are judged are not among them.
    """
    folder = manifest.path.absolute().parent
    named: set[Path] = set()
    for model in manifest.models:
        named |= set(model.depends) | set(_modules(model, folder))
        if model.source is not None and model.source.path is not None:
            named.add(model.source.path)
        table = model.embedding and model.embedding.path
        named |= {p for p in (model.reference, model.tokenizer, table) if isinstance(p, Path)}
        for shard in model.shards:
            packages = shard.reference, shard.uncompressed
            named |= {path for path in packages if isinstance(path, Path)}
            for gate in GATES.values():
                if gate.recordable:
                    named |= set(shard.policy.evidence_for(gate.name).signers or ())
    digests = {
        path.relative_to(folder).as_posix(): tree_digest(path)
        if path.is_dir()
        else file_digest(path)
        for path in named
        if path.exists() and path.is_relative_to(folder)
    }
    return digests | {f"gates/{name}": digest for name, digest in gate_files(folder).items()}


def _modules(model: Model, folder: Path) -> Iterator[Path]:
    own = str(model.reference) if ":" in str(model.reference) else ""
    names = [name for name in (model.family, model.builder, own) if name and name not in FAMILIES]
    for name in names:
        top = name.partition(":")[0].partition(".")[0]
        yield from (path for path in (folder / f"{top}.py", folder / top) if path.exists())
