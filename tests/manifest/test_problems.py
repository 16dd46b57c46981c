"""Sentences about problems, and their order."""

from __future__ import annotations

import pytest

from pytest_ane.manifest import FAMILIES
from pytest_ane.manifest.problems import (
    key_lines,
    line_of,
)
from tests.manifest.conftest import Complaints

MODEL = """\
[models.m]
family = "llama"
source = { path = "m.gguf" }
shards = "L00-L03, head.0"
"""
C, F, P = (f"{MODEL}[models.m.{table}]\n" for table in ("compression", "policy.fidelity", "probes"))
PALETTE = f'{C}method = "palettize"\n'
PROMPT = f'{MODEL}[[models.m.prompts]]\nname = "p"\n'
PRUNE = f'{C}method = "prune"\n'
OVERRIDE = f'{PALETTE}[[models.m.compression.overrides]]\nweights = "*"\n'

SAID = [
    (MODEL, "probes = 3", "must be a table."),
    (MODEL, "max-tokens = 0", "must be greater than or equal to 1."),
    (MODEL, "prompts = 3", "must be a list."),
    (MODEL, 'variant = "notes"', "is none of the family's variants; there are: none."),
    (MODEL, "arithmetic = []", "must be 'typed', 'ane' or a list of both."),
    (PALETTE, "nbits = 5", "must be 1, 2, 3, 4, 6 or 8."),
    (PALETTE, "nbits = true", "must be a whole number."),
    (PALETTE, 'joint = [{ method = "palettize" }]',
     "palettize then palettize cannot be done jointly; what can is linear then palettize; "),
    (C, 'method = "palete"', "must be one of 'palettize', 'linear', 'prune', 'none'."),
    (F, "min-cosine = nan", "must be a finite number."),
    (P, "kinds = []", "must not be empty."),
    (PRUNE, "n_m_ratio = [4, 2]", "must be [n, m] with n at most m."),
    (OVERRIDE, "nbits = 5", "must be 1, 2, 3, 4, 6 or 8."),
    (OVERRIDE, "block_size = 4", "belongs to method = 'linear'."),
    (OVERRIDE, "nbit = 4", "unknown key 'nbit': did you mean 'nbits'"),
]  # fmt: skip
"""A table, the last line of it, and what is said of the line's value."""
TOLD = [
    (MODEL, "prompts = [3]", "prompts[0] = 3: must be a table."),
    (MODEL, 'depends = ["x"]', "'depends' needs a builder"),
    (MODEL, "max_tokens = 4", "unknown key 'max_tokens': did you mean 'max-tokens'?"),
    (MODEL, "compresion.nbits = 4", "unknown key 'compresion': did you mean 'compression'?"),
    (MODEL, "min-cosine = 0.9", "unknown key 'min-cosine': it belongs in another table."),
    (PALETTE, 'keep = ["a", ""]', 'keep[1] = "": must not be empty.'),
    (F, "outputs.y.min-cosin = 1", "unknown key 'min-cosin': did you mean 'min-cosine'?"),
    (P, "size = 4", "unknown key 'size': "),
    (F, 'min-cosine = "high"', 'min-cosine = "high": must be a valid number.'),
]
"""The same, with what is said from the table on."""
SENTENCES = [
    (C + "nbits = 4", "'method' is missing; add one of 'palettize', 'linear', 'prune' or 'none'."),
    (MODEL + 'policy.compression.max-bytes = "5 Mb"',
     'max-bytes = "5 Mb": must be a number of bytes or a size such as "5 MB" or "4.8 MiB".'),
    (MODEL + 'policy.compression.int8-per-tensor-over = "10 MB"',
     'must be a number of elements or a text such as "10M".'),
    (MODEL + 'policy.placement.os = "Linux"',
     "os = \"Linux\": must be a system such as 'macOS 26'"),
    (MODEL + 'policy.placement.min-os = "iOS 14"',
     'min-os = "iOS 14": is older than iOS 15 and macOS 12, the first that load ML Programs'),
    (MODEL + 'policy.placement.min-os = "17"', "must be a system such as 'macOS 26'"),
    (MODEL + "policy.placement.spec-version = 0",
     "spec-version = 0: must be greater than or equal to 1"),
    (MODEL + "policy.placement.max-work-off-ane = 1", "max-work-off-ane = 1: must be less than 1"),
    (MODEL + "policy.placement.off-ane = ['']", "must be an op's name or type"),
    (PROMPT, "[[models.m.prompts]] give exactly one of text, chat and ids."),
    (MODEL + "prompts = [{ name = 'a b', text = 'x' }]", "must be a name of letters, digits, '_'"),
    (MODEL + "[[models.m.prompts]]\ntext = 'x'", "[[models.m.prompts]] 'name' is missing; add it."),
    (MODEL.replace('path = "m.gguf"', 'package = "p"'),
     "3: [models.m.source] give either path, or package and file, or hub, or seeded."),
    (MODEL.replace('path = "m.gguf"', "seeded = 1, config = { since = 2020-01-01 }"),
     "3: [models.m.source.config] since = 2020-01-01: "),
    (MODEL.replace('"m.gguf"', '"m.gguf", sha256 = "12"'),
     'sha256 = "12": must be a SHA-256 digest, 64 hexadecimal digits.'),
    (MODEL.replace('"llama"', '"lama"'), "or an installed one; did you mean 'llama'?"),
    (MODEL.replace('"llama"', '"nowhere.at.all"'),
     f'2: [models.m] family = "nowhere.at.all": is neither a family ({", ".join(FAMILIES)}) nor '
     "a module in the manifest's folder or an installed one."),
    (MODEL.replace('"llama"', '"my family"'), "must be a family or a module's name, such as"),
    ('[models.m]\nbuilder = "nowhere:build"\nshards = "L00"',
     "2: [models.m] builder = \"nowhere:build\": 'nowhere' is not a module in the manifest's"),
    ('[models.m]\nbuilder = "json"\nshards = "L00"',
     "must be a module and a function, 'module:function'."),
    ('[models.m]\nbuilder = "json:load"', "1: [models.m] 'shards' is missing; name those that"),
    (MODEL.replace("L00-L03", "L00-M03"), "'L00-M03' is neither a shard id such as 'L00' nor a "),
    (MODEL.replace('"L00-L03, head.0"', "30"), "must be a text such as 'L00-L29, head.0-head.3'"),
    (MODEL + '[models.m.shard.L00]\nartifact = "x.onnx"\nreference = "none"',
     '6: [models.m.shard.L00] artifact = "x.onnx": must be the path of a .mlpackage or '),
    (MODEL + '[models.m.shard.L00]\nreference = "float16"',
     "must be 'float32' (needs a family), 'none', or the path of a .mlpackage, a .mlmodelc or"),
    (MODEL.replace("llama", "zaya") + "variant = 'note'",
     "is none of the family's variants; there are: published, notes."),
    (MODEL + "[models.m.shard.head.0]\nreference = 'none'",
     "[models.m.shard.head] unknown key '0'"),
    ("[models.'a b'.shard.x]\nartifact = 'x.mlpackage'\nreference = 'none'",
     "1: [models.\"a b\"] must be letters, digits, '_', '-' and '.'."),
    (MODEL + "[models.m.shard.'a b']", '5: [models.m.shard."a b"] must be a shard id such as L00'),
    (PRUNE, "needs exactly one of target_sparsity, n_m_ratio, threshold."),
    (PRUNE + "target_sparsity = 0.5\nthreshold = 0.1", "needs exactly one of target_sparsity"),
    (MODEL + "arithmetic = 'fp16'", "arithmetic = \"fp16\": must be 'typed' or 'ane'."),
    (OVERRIDE + 'op_type = "conv"\nnbits = 4', "give either weights or op_type."),
    (PRUNE + 'target_sparsity = 0.5\njoint = [{ method = "palettize", keep = ["a"] }]',
     '8: [[models.m.compression.joint]] keep = ["a"]: belongs to the method itself.'),
    (PALETTE + 'joint = [{ method = "none" }]', "method = \"none\": must be one of 'palettize', "),
    (PALETTE + "[[models.m.compression.overrides]]\nnbits = 4",
     "7: [[models.m.compression.overrides]] give either weights or op_type."),
]  # fmt: skip
"""A file, and what its one line says."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((table + more, f" {more.splitlines()[-1]}: {said}") for table, more, said in SAID),
        *((table + more, f"] {told}") for table, more, told in TOLD),
    ],
)
def test_values_and_keys(text: str, said: str, complaints: Complaints) -> None:
    """With the line of the file, which is its last."""
    header = [line for line in text.splitlines() if line.startswith("[")][-1]
    (line,) = complaints(text)
    assert line.startswith(f"shards.toml:{len(text.splitlines())}: {header.rstrip(']')}")
    assert said in line


@pytest.mark.parametrize(("text", "sentence"), SENTENCES)
def test_sentences(text: str, sentence: str, complaints: Complaints) -> None:
    (line,) = complaints(text)
    assert line.startswith("shards.toml:")
    assert sentence in line


TEXT = """\
title = "x"

[models.m]
source = { package = "p", file = "f" }
# [not a table]
shards = [
    "L00",  # first
]
probes.count = 3

[models.m.shard."head.0".policy.fidelity]
min-cosine = 0.9

[[models.m.prompts]]
name = "a"

[[models.m.prompts]]
text = \"\"\"
two
lines\"\"\"
name = "b"

[models.'n']
"c\\u0064" = 1
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 1),
        (("models",), 3),
        (("models", "m", "source", "path"), 4),
        (("models", "m", "shards"), 6),
        (("models", "m", "probes", "count"), 9),
        (("models", "m", "shard", "head.0", "policy"), 11),
        (("models", "m", "shard", "head.0", "policy", "fidelity", "min-cosine"), 12),
        (("models", "m", "prompts", 0, "name"), 15),
        (("models", "m", "prompts", 1), 17),
        (("models", "m", "prompts", 1, "text"), 18),
        (("models", "m", "prompts", 1, "name"), 21),
        (("models", "n", "cd"), 24),
        (("models", "q"), 3),
        (("defaults",), None),
        ((), None),
    ],
)
def test_the_nearest_line(path: tuple[str | int, ...], line: int | None) -> None:
    assert line_of(key_lines(TEXT), path) == line
    assert line_of(key_lines(TEXT.replace("\n", "\r\n")), path) == line


def test_tables_inside_arrays_of_tables() -> None:
    lines = key_lines("[[a.b]]\n[[a.b]]\n[a.b.c]\nd = 1\n")
    assert lines["a", "b", 1, "c", "d"] == 4
