"""What `init --from` and `try` take: packages, folders of them, models, torch modules."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_ane.manifest import parse
from pytest_ane.manifest.chain import LOGITS
from pytest_ane.mlprogram.errors import AneError, ManifestError
from pytest_ane.mlprogram.model import SUFFIXES, entry_points, read_any, read_model
from pytest_ane.mlprogram.pairing import program_digest
from pytest_ane.mlprogram.text import printable
from pytest_ane.probes.domains import domains
from pytest_ane.tools._init_model import NBITS, model_name, scaffold, stack_prompts
from pytest_ane.tools._init_packages import Made, of_packages, render

SOURCES = (
    "packages or a folder of them, ANEMLL's with its meta.yaml too; a folder of safetensors with "
    "its config.json, a GGUF file, or a repository of the Hugging Face cache, as Qwen/Qwen3-0.6B; "
    "or model.py:Net, a torch module"
)
_TORCH = re.compile(r"(?P<module>[\w./~-]+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
"""A file or a module, and what in it makes a torch module."""
_MODELS = (".gguf", ".safetensors", ".json")
_PLAIN = re.compile(r"(.+)[-_.](?:fp16|float16|fp32|float32|uncompressed)")
"""What people call a package before its compression, beside those that came of it."""
_INPUT = re.compile(r"([A-Za-z_]\w*)=(\d+(?:,\d+)*)")


def of_source(
    source: str, manifest: Path, references: Sequence[str] = (), inputs: Sequence[str] = ()
) -> Made:
    """A manifest of whatever `source` names; nothing is written.

    `references` are of packages, as of `of_packages`, or one folder of packages; `inputs` are a
    torch module's, `x=1,3,224,224`. `AneError` with one sentence where it cannot be gated.
    """
    path = Path(source).expanduser()
    if match := _TORCH.fullmatch(source):
        return _of_torch(match["module"], match["name"], manifest, inputs)
    if inputs:
        raise ManifestError("--input is for a torch module, as model.py:Net; leave it out.")
    if path.suffix in SUFFIXES:
        if not path.exists():
            raise ManifestError(f"{source}: no such package; check the path.")
        return of_packages([path], references, manifest)
    found = _packages(path) if path.is_dir() else {}
    if found and (path / META).is_file():
        return _of_stack(path, found, references, manifest)
    if found:
        return of_packages(*_with_plain(found, references), manifest)
    if references:
        raise ManifestError(f"--reference is for packages, and {source} has none; leave it out.")
    if path.suffix == ".py":
        raise ManifestError(f"{source}: name a class or a function of it, as {source}:Net.")
    if path.is_file() and path.suffix not in _MODELS:
        raise ManifestError(
            f"{source}: no package and no model, but a {path.suffix or 'bare'} file."
        )
    if path.is_dir() and not any(path.iterdir()):
        raise ManifestError(f"{source}: the folder is empty; name one of packages, or of a model.")
    return scaffold(source, manifest)


def _packages(folder: Path) -> dict[str, Path]:
    """Packages of a folder by stem; of a package and its compiled form the package."""
    paths = (path for suffix in reversed(SUFFIXES) for path in folder.glob(f"*{suffix}"))
    return dict(sorted({path.stem: path for path in paths}.items()))


def _with_plain(
    found: Mapping[str, Path], references: Sequence[str]
) -> tuple[list[Path], Sequence[str]]:
    """The packages to gate, and a reference for each: of `x-fp16` and others of `x`, that one."""
    if len(references) == 1 and Path(references[0]).is_dir() and not _is_package(references[0]):
        others = _packages(Path(references[0]))
        return [*found.values()], [str(others.get(stem, "none")) for stem in found]
    if references:
        return [*found.values()], references
    plain = {match[1]: path for name, path in found.items() if (match := _PLAIN.fullmatch(name))}
    of = {}
    for stem, path in found.items():
        if path not in plain.values():
            own = (
                p for name, p in plain.items() if re.match(rf"{re.escape(name)}(?![^\W_])", stem)
            )
            of[path] = str(next(own, "none"))
    return ([*of], [*of.values()]) if of else ([*found.values()], ())


def _is_package(path: str) -> bool:
    return Path(path).suffix in SUFFIXES


# A decoder as ANEMLL's converter writes it: embeddings, chunks of layers, a head, and a file that
# says how long they are. Names of its files and of ports:
# https://github.com/Anemll/Anemll, docs/convert_model.md and anemll/utils/generate_meta_yaml.py.

META = "meta.yaml"
_ROLES = {
    "NAME_embeddings": re.compile(r".*embeddings.*"),
    "NAME_FFN_PF_chunk_01of02": re.compile(r".*FFN_PF.*?(?:chunk_?(\d+)of\d+)?"),
    "NAME_lm_head": re.compile(r".*lm_head.*"),
}
"""How files of each role are called."""
_IDS, _HIDDEN, _MASK = "input_ids", "hidden_states", "causal_mask"


def _of_stack(
    folder: Path, found: Mapping[str, Path], references: Sequence[str], manifest: Path
) -> Made:
    said = _parameters(folder / META)
    shards = _roles(folder, found, said.get("num_chunks"))
    others = dict(_references(shards, references))
    # What is not compressed is its own uncompressed form.
    alone = [shard for shard in others if _same(shards[shard], Path(others[shard]))]
    named = ["none" if shard in alone else others.get(shard, "none") for shard in shards]
    made = of_packages([*shards.values()], named, manifest, [*shards], alone)
    context, batch = (_whole(folder, said, key) for key in ("context_length", "batch_size"))
    tokenizer = folder / "tokenizer.json"
    text = render(
        "stack.toml.jinja", context=context, batch=batch, chain=[*_chain(shards)],
        prompts=stack_prompts(_vocabulary(shards["embeddings"]), context, tokenizer.is_file()),
        tokenizer=str(tokenizer.absolute()) if tokenizer.is_file() else "", packages=made.text,
    )  # fmt: skip
    parse(text, manifest)
    return made._replace(text=text)


def _same(one: Path, other: Path) -> bool:
    return program_digest(read_model(one)) == program_digest(read_model(other))


def _parameters(file: Path) -> Mapping[str, Any]:
    """What `meta.yaml` tells of the packages."""
    try:
        return dict(yaml.safe_load(file.read_text(encoding="utf-8"))["model_info"]["parameters"])
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
        raise ManifestError(
            f"{file}: has no table model_info.parameters, or is no YAML; copy it anew from the "
            "converter's folder, or take it away to gate each package alone."
        ) from None


def _whole(folder: Path, said: Mapping[str, Any], key: str) -> int:
    value = said.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 20:
        return value
    raise ManifestError(f"{folder / META}: {key} is {value!r}; give a whole number above 0.")


def _roles(folder: Path, found: Mapping[str, Path], count: object) -> dict[str, Path]:
    """Shards in running order: `embeddings`, `chunk1`, ..., `head`."""
    by_role: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for stem, path in found.items():
        for role, pattern in _ROLES.items():
            if match := pattern.fullmatch(stem):
                number = match[1] if match.groups() else None
                by_role[role].append((int(number or 1), path))
    (first, _), (middle, _), (last, _) = _ROLES.items()
    for role, needed in ((first, 1), (middle, count or len(by_role[middle]) or 1), (last, 1)):
        if len(by_role[role]) != needed or len(dict(by_role[role])) != needed:
            names = ", ".join(path.name for _, path in by_role[role]) or "none"
            what = f"{needed} such as {role}"
            raise ManifestError(f"{folder / META}: needs {what}, and the folder has {names}.")
    chunks = {f"chunk{number}": path for number, path in sorted(by_role[middle])}
    return {"embeddings": by_role[first][0][1], **chunks, "head": by_role[last][0][1]}


def _references(shards: Mapping[str, Path], references: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Of the folder of another conversion, the package of each role."""
    if not references:
        return
    if len(references) != 1 or not Path(references[0]).is_dir():
        raise ManifestError("--reference of a folder with meta.yaml is another such folder.")
    other = _roles(Path(references[0]), _packages(Path(references[0])), len(shards) - 2)
    yield from ((shard, str(path)) for shard, path in other.items())


def _vocabulary(embeddings: Path) -> int:
    model = read_any(embeddings, weights=False)
    domain = domains(model.inputs, {}, embeddings).get(_IDS)
    if domain is None or not domain.count:
        raise ManifestError(f"{embeddings}: its input {_IDS} is no index of a table of rows.")
    return domain.count


def _chain(shards: Mapping[str, Path]) -> Iterator[dict[str, Any]]:
    """The place of each package, of those with functions by their calls' lengths."""
    for shard, path in shards.items():
        names = entry_points(path)
        models = [read_any(path, weights=False, function=name) for name in names or (None,)]
        inputs = {feature.name for model in models for feature in model.inputs}
        outputs = [feature.name for feature in models[0].outputs]
        takes = _IDS if _IDS in inputs else _HIDDEN
        logits = sorted((n for n in outputs if n.startswith(LOGITS)), key=_number)
        gives = logits or [n for n in outputs if n.endswith(_HIDDEN)]
        if takes not in inputs or not gives:
            raise ManifestError(
                f"{path}: has {printable(', '.join([*sorted(inputs), *outputs]))}, not {takes} and "
                f"{_HIDDEN} or {LOGITS}, so it has no place in a chain; take meta.yaml away to "
                "gate each package alone."
            )
        # The last chunk of a prefill may give one position of all.
        whole = [
            name for name, model in zip(names, models, strict=False) if _alike(model, takes, gives)
        ]
        mode = "appends" if logits else "gives"
        stream = LOGITS if logits else "x"
        yield {
            "shard": shard, "takes": takes, "mode": mode, "mask": _MASK in inputs,
            "functions": whole, "outputs": {name: stream for name in gives},
        }  # fmt: skip


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name) or 0)


def _alike(model: Any, takes: str, gives: Sequence[str]) -> bool:
    """Whether a function gives as many positions as it takes."""
    shapes = {feature.name: feature.shape for feature in (*model.inputs, *model.outputs)}
    into, out = shapes.get(takes), shapes.get(gives[0])
    return not into or not out or into[1] == out[1]


# A torch module, from a file or an installed module. Its code is run.


def _of_torch(module: str, name: str, manifest: Path, inputs: Sequence[str]) -> Made:
    import torch

    where = f"{module}:{name}"
    folder, dotted = Path.cwd(), module
    if module.endswith(".py"):
        file = Path(module).expanduser().absolute()
        if not file.is_file():
            raise ManifestError(f"{module}: no such file; check the path.")
        folder, dotted = file.parent, file.stem
    sys.path.insert(0, str(folder))
    called = f"{name}()"
    try:
        loaded = importlib.import_module(dotted)
        if (
            module.endswith(".py")
            and Path(getattr(loaded, "__file__", None) or "").absolute() != file
        ):
            raise ManifestError(f"{module}: {dotted} is the name of another module; rename it.")
        make = getattr(loaded, name, None)
        if make is None:
            raise ManifestError(f"{module}: has no {name!r}; name a class or a function of it.")
        torch.manual_seed(0)
        made = make()
        net, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(net, torch.nn.Module):
            kind = type(net).__name__
            raise ManifestError(f"{where}: gives a {kind}; let it give a torch.nn.Module.")
        arrays = _example(where, net.eval(), example, inputs)
        called = (
            f"forward of {', '.join(f'{k} {list(x.shape)}' for k, x in arrays.items())} in float32"
        )
        with torch.no_grad():
            given = net(*arrays.values())
    except AneError:
        raise
    except Exception as error:
        said = printable(f"{type(error).__name__}: {error}".partition("\n")[0])
        raise ManifestError(f"{where}: {called} ended in {said}.") from error
    finally:
        sys.path.remove(str(folder))
    parts = [*given.values()] if isinstance(given, Mapping) else given
    parts = parts if isinstance(parts, tuple | list) else [parts]
    shard, builder = model_name(Path(name)), f"try_{dotted.rpartition('.')[2]}"
    names = [f"y{i}" for i in range(len(parts))] if len(parts) > 1 else ["y"]
    outputs = {key: tuple(y.shape) for key, y in zip(names, parts, strict=True)}
    weights = sum(p.numel() for p in net.parameters())
    values = {
        "where": where, "module": dotted, "make": name, "shard": shard, "builder": builder,
        "inputs": {key: tuple(x.shape) for key, x in arrays.items()}, "outputs": outputs,
        "nbits": NBITS, "pair": made is not net, "mapping": isinstance(given, Mapping),
        "folder": str(folder),
        "depends": str(folder / f"{dotted}.py") if module.endswith(".py") else "",
    }  # fmt: skip
    files = {f"{builder}.py": render("builder.py.jinja", **values).encode()}
    summary = f"{shard}: {weights:,} parameters; what it gives is compared with itself in float32"
    text = render("torch.toml.jinja", **values)
    return Made(text, (summary, "next: pytest --ane-shards=all -m gate"), {"shards": [shard]},
                files=files)  # fmt: skip


def _example(where: str, net: Any, example: Any, inputs: Sequence[str]) -> dict[str, Any]:
    """Inputs by name: of `--input`, of who made the module, or as its configuration says."""
    import torch

    names = [
        p.name for p in inspect.signature(net.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    if inputs:
        shapes = dict(_shape(each) for each in inputs)
        if unknown := [each for each in shapes if each not in names]:
            known = ", ".join(names)
            raise ManifestError(f"--input {unknown[0]}: {where} takes {known}; name one of them.")
        return {key: torch.randn(shapes[key]) for key in names if key in shapes}
    example = getattr(net, "example_inputs", None) if example is None else example
    config = getattr(net, "config", None)
    if example is None and config and getattr(net, "main_input_name", "") == "pixel_values":
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        example = {"pixel_values": torch.randn(1, config.num_channels, size, size)}
    if example is None:
        raise ManifestError(
            f"{where}: nobody knows the shapes of {', '.join(names)}; say --input {names[0]}="
            "1,3,224,224, or let it return (module, inputs)."
        )
    if isinstance(example, torch.Tensor):
        example = (example,)
    named = example if isinstance(example, Mapping) else dict(zip(names, example, strict=False))
    for key, value in named.items():
        if not torch.is_tensor(value) or not value.is_floating_point():
            raise ManifestError(
                f"{where}: the input {key} is no tensor of floats, and other inputs cannot be "
                "tried yet; let the module take what its embedding gives."
            )
    return dict(named)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    if not (match := _INPUT.fullmatch(text)):
        raise ManifestError(f"--input {text}: is no NAME=SHAPE; write it as x=1,3,224,224.")
    return match[1], tuple(map(int, match[2].split(",")))
