"""Sentences about problems, and their order."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any, get_args

import pytest

from pytest_ane.manifest import FAMILIES
from pytest_ane.manifest.compression import OpType
from pytest_ane.manifest.problems import (
    Problem,
    at_key,
    at_table,
    at_value,
    dotted,
    key_lines,
    label,
    line_of,
    report,
    toml_value,
)
from tests.manifest.conftest import Complaints

PROMPT_PATH = ("models", "m", "prompts", 1)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (at_value(("models", "m", "target"), "x", "bad"), '[models.m] target = "x": bad'),
        (at_value((*PROMPT_PATH, "greedy"), -1, "bad"), "[[models.m.prompts]] greedy = -1: bad"),
        (at_value((*PROMPT_PATH, "ids", 0), -1, "bad"), "[[models.m.prompts]] ids[0] = -1: bad"),
        (at_value(PROMPT_PATH, {"name": "x"}, "bad"), "[[models.m.prompts]] bad"),
        (at_value(PROMPT_PATH, 3, "bad"), "[models.m] prompts[1] = 3: bad"),
        (at_value(("defaults",), 3, "bad"), "defaults = 3: bad"),
        (at_key(("models", "m", "x"), "unknown"), "[models.m] unknown"),
        (at_key(("x",), "unknown"), "unknown"),
        (at_table((), "empty"), "empty"),
        (at_table(("models", "m", "shard", "head.0"), "bad"), '[models.m.shard."head.0"] bad'),
    ],
)
def test_texts(problem: Problem, text: str) -> None:
    assert problem.text == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (0.5, "0.5"),
        (math.nan, "nan"),
        ('a "b"\n', r'"a \"b\"\n"'),
        ("é", '"é"'),
        ([1, "a"], '[1, "a"]'),
        ([{"a b": 1}], '[{ "a b" = 1 }]'),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        ("x" * 100, '"' + "x" * 56 + "..."),
    ],
)
def test_values_as_toml_writes_them(value: Any, text: str) -> None:
    assert toml_value(value) == text


def test_names_of_tables() -> None:
    assert dotted(("models", "zaya1-8b", "shard", "L0[0-3]")) == 'models.zaya1-8b.shard."L0[0-3]"'


def test_files_below_the_current_folder_are_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert label(tmp_path / "a" / "shards.toml") == str(Path("a", "shards.toml"))
    assert label(Path("/elsewhere/shards.toml")) == str(Path("/elsewhere/shards.toml"))


def test_a_report_is_in_the_file_s_order_and_says_a_thing_once() -> None:
    text = "[a]\nx = 1\ny = 2\n"
    problems = [
        Problem(("a", "y"), "second"),
        Problem(("a", "x"), "first: did you mean 'z'?"),
        Problem(("a", "y"), "second"),
        Problem(("b",), "of the whole file"),
    ]
    assert report(Path("/m.toml"), text, problems) == (
        "/m.toml: of the whole file.\n/m.toml:2: first: did you mean 'z'?\n/m.toml:3: second."
    )


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
    (MODEL, "compression = 3", "must be a table."),
    (MODEL, "max-tokens = 0", "must be at least 1."),
    (MODEL, 'target = "iOS15"', "must be one of 'iOS16', 'iOS17', 'iOS18'."),
    (MODEL, "prompts = 3", "must be a list."),
    (MODEL, "arithmetic = []", "must be 'typed', 'ane' or a list of both."),
    (PALETTE, "nbits = 5", "must be one of 1, 2, 3, 4, 6, 8."),
    (PALETTE, "nbits = true", "must be a whole number."),
    (PALETTE, 'mode = "kmean"', "must be one of 'kmeans', 'uniform', 'unique'."),
    (PALETTE, "group_size = 0", "must be at least 1."),
    (PALETTE, "keep = 3", "must be a list."),
    (PALETTE, "enable_per_channel_scale = 1", "must be true or false."),
    (
        PALETTE,
        'mode = "uniform"\ncluster_dim = 2',
        "must be 1 with mode = 'uniform', or use 'kmeans'.",
    ),
    (PALETTE, "cluster_dim = 3", "must divide group_size = 32."),
    (
        PALETTE,
        'joint = [{ method = "linear" }]',
        "linear after palettize quantizes the tables; granularity must be 'per_tensor'.",
    ),
    (
        PALETTE,
        'joint = [{ method = "prune", n_m_ratio = [2, 4] }]',
        "prune after another method takes target_sparsity or threshold.",
    ),
    (
        PALETTE,
        'joint = [{ method = "palettize" }]',
        "palettize then palettize cannot be done jointly; what can is linear then palettize; "
        "linear then prune; palettize then linear; palettize then prune; palettize then prune "
        "then linear; prune then linear; prune then palettize; prune then palettize then linear.",
    ),
    (
        PALETTE,
        'enable_per_channel_scale = true\njoint = [{ method = "linear", granularity = '
        '"per_tensor" }]',
        "enable_per_channel_scale must be false in joint compression.",
    ),
    (C, 'method = "palete"', "must be one of 'palettize', 'linear', 'prune', 'none'."),
    (
        C,
        'method = "linear"\ndtype = "int4"\njoint = [{ method = "palettize" }]',
        "linear before palettize must have dtype 'int8' or 'uint8'.",
    ),
    (F, 'min-cosine = "high"', "must be a number."),
    (F, "max-non-finite = 1", "must be less than 1."),
    (F, "min-cosine = 1.5", "must be at most 1."),
    (F, "min-cosine = nan", "must be a finite number."),
    (F, "min-live-probes = 1.5", "must be a whole number."),
    (P, "kinds = []", "must not be empty."),
    (PROMPT, "text = 3", "must be text in quotes."),
    (PRUNE, "target_sparsity = 1.5", "must be at most 1."),
    (PRUNE, "n_m_ratio = [4, 2]", "must be [n, m] with n at most m."),
    (
        PRUNE,
        'target_sparsity = 0.5\njoint = [{ method = "palettize", cluster_dim = 2 }]',
        "cluster_dim must be 1 in joint compression, except for palettize then linear.",
    ),
    (
        OVERRIDE,
        'joint = [{ method = "linear" }]',
        "linear after palettize quantizes the tables; granularity must be 'per_tensor'.",
    ),
    (OVERRIDE, "nbits = 5", "must be one of 1, 2, 3, 4, 6, 8."),
    (
        OVERRIDE,
        "block_size = 4",
        "belongs to method = 'linear'; name that method here, or leave the key out.",
    ),
    (OVERRIDE, 'mode = "linear"', "must be one of 'kmeans', 'uniform', 'unique'."),
    (OVERRIDE, "group_size = 16\ncluster_dim = 3", "must divide group_size = 16."),
]
"""A table, the last line of it, and what is said of the line's value."""
TOLD = [
    (MODEL, "prompts = [3]", "prompts[0] = 3: must be a table."),
    (MODEL, 'depends = ["x"]', "'depends' needs a builder; a family's VERSION says it."),
    (MODEL, "max_tokens = 4", "unknown key 'max_tokens': did you mean 'max-tokens'?"),
    (MODEL, "compresion.nbits = 4", "unknown key 'compresion': did you mean 'compression'?"),
    (
        MODEL,
        "min-cosine = 0.9",
        "unknown key 'min-cosine': it belongs in [models.m.policy.fidelity].",
    ),
    (MODEL, "nbits = 4", "unknown key 'nbits': it belongs in [models.m.compression]."),
    (MODEL, "variant = 'notes'", "family 'llama' has no variants; leave 'variant' out."),
    (MODEL, "arithmetic = 'fp16'", "arithmetic = \"fp16\": must be 'typed' or 'ane'."),
    (
        MODEL,
        "arithmetic = ['typed', 'h14']",
        'arithmetic = ["typed", "h14"]: h13 to h15 (M1 to M3) sum in other ways than M4 and '
        "later, and their rules are not known; use 'ane', which is h16+.",
    ),
    (PALETTE, 'keep = ["a", ""]', 'keep[1] = "": must not be empty.'),
    (PALETTE, "group-size = 4", "unknown key 'group-size': did you mean 'group_size'?"),
    (
        C,
        'method = "none"\nnbits = 4',
        "unknown key 'nbits': the keys here are keep, method, overrides.",
    ),
    (F, "min-cosin = 0.9", "unknown key 'min-cosin': did you mean 'min-cosine'?"),
    (
        P,
        'kinds = ["gaussian", "uniform"]',
        "kinds[1] = \"uniform\": must be one of 'gaussian', 'unit-norm', 'captured', 'outlier', "
        "'extreme', 'massive', 'ragged', 'rewrite'.",
    ),
    (P, "size = 4", "unknown key 'size': the keys here are count, kinds, lengths, seed."),
    (PROMPT, "ids = [1, -1]", "ids[1] = -1: must be at least 0."),
    (PROMPT, "txt = 'x'", "unknown key 'txt': did you mean 'text'?"),
    (OVERRIDE, "nbit = 4", "unknown key 'nbit': did you mean 'nbits'?"),
]
"""The same, with the whole sentence."""
SENTENCES = [
    (
        C + "nbits = 4",
        "5: [models.m.compression] 'method' is missing; add one of 'palettize', 'linear', "
        "'prune' or 'none'.",
    ),
    (
        F + "outputs.y.min-cosin = 1",
        "6: [models.m.policy.fidelity.outputs.y] unknown key 'min-cosin': did you mean "
        "'min-cosine'?",
    ),
    (
        MODEL + "policy.compression.min-ratio = 0",
        "5: [models.m.policy.compression] min-ratio = 0: must be more than 0.",
    ),
    (
        MODEL + 'policy.compression.max-bytes = "5 Mb"',
        '5: [models.m.policy.compression] max-bytes = "5 Mb": must be a number of bytes or a size '
        'such as "5 MB" or "4.8 MiB".',
    ),
    (
        MODEL + 'policy.placement.os = "Linux"',
        "5: [models.m.policy.placement] os = \"Linux\": must be a system such as 'macOS 26'.",
    ),
    (
        MODEL + 'policy.placement.require = "proof"',
        "5: [models.m.policy.placement] require = \"proof\": must be one of 'forecast', "
        "'predicted', 'plan'.",
    ),
    (
        MODEL + 'policy.unproven = "pass"',
        "5: [models.m.policy] unproven = \"pass\": must be one of 'fail', 'allow'.",
    ),
    (
        P + 'kinds = ["gaussian", "gaussian"]',
        "5: [models.m.probes] kinds names a kind twice; name each once.",
    ),
    (
        P + "lengths = [8, 8]",
        "5: [models.m.probes] lengths names a length twice; name each once.",
    ),
    (PROMPT, "5: [[models.m.prompts]] give exactly one of text, chat and ids."),
    (
        MODEL + "prompts = [{ name = 'a b', text = 'x' }]",
        "5: [[models.m.prompts]] name = \"a b\": must be a name of letters, digits, '_', '-' and "
        "'.'.",
    ),
    (
        MODEL.replace('"m.gguf"', "3"),
        "3: [models.m.source] path = 3: must be a path in quotes.",
    ),
    (
        MODEL.replace('path = "m.gguf"', 'package = "p"'),
        "3: [models.m.source] give either path, or package and file, or hub, or seeded.",
    ),
    (
        MODEL.replace('path = "m.gguf"', "seeded = -1"),
        "3: [models.m.source] seeded = -1: must be at least 0.",
    ),
    (
        MODEL.replace('path = "m.gguf"', "seeded = 1, config = { since = 2020-01-01 }"),
        "3: [models.m.source.config] since = 2020-01-01: must be a number, text, list or table.",
    ),
    (
        MODEL.replace('path = "m.gguf"', "seeded = 1, config = 3"),
        "3: [models.m.source] config = 3: must be a table.",
    ),
    (
        MODEL.replace('"m.gguf"', '"m.gguf", sha256 = "12"'),
        '3: [models.m.source] sha256 = "12": must be a SHA-256 digest, 64 hexadecimal digits.',
    ),
    (
        MODEL.replace('"llama"', '"lama"'),
        f'2: [models.m] family = "lama": is neither a family ({", ".join(FAMILIES)}) nor a module '
        "in the manifest's folder or an installed one; did you mean 'llama'?",
    ),
    (
        MODEL.replace('"llama"', '"nowhere.at.all"'),
        f'2: [models.m] family = "nowhere.at.all": is neither a family ({", ".join(FAMILIES)}) nor '
        "a module in the manifest's folder or an installed one.",
    ),
    (
        MODEL.replace('"llama"', '"my family"'),
        '2: [models.m] family = "my family": must be a family or a module\'s name, such as '
        "'my.family'.",
    ),
    (
        '[models.m]\nbuilder = "nowhere:build"\nshards = "L00"',
        "2: [models.m] builder = \"nowhere:build\": 'nowhere' is not a module in the "
        "manifest's folder or an installed one.",
    ),
    (
        '[models.m]\nbuilder = "json"\nshards = "L00"',
        "2: [models.m] builder = \"json\": must be a module and a function, 'module:function'.",
    ),
    (
        '[models.m]\nbuilder = "json:load"',
        "1: [models.m] 'shards' is missing; name those that the builder makes.",
    ),
    (
        MODEL.replace("L00-L03", "L00-M03"),
        "4: [models.m] shards = \"L00-M03, head.0\": 'L00-M03' is neither a shard id such as 'L00' "
        "nor a range such as 'L00-L29', whose ends differ in their last number only, or "
        "'L{00-29}.p{0-7}'.",
    ),
    (
        MODEL.replace('"L00-L03, head.0"', "30"),
        "4: [models.m] shards = 30: must be a text such as 'L00-L29, head.0-head.3', or a list of "
        "such.",
    ),
    (
        MODEL + '[models.m.shard.L00]\nartifact = "x.onnx"\nreference = "none"',
        '6: [models.m.shard.L00] artifact = "x.onnx": must be the path of a .mlpackage or '
        ".mlmodelc.",
    ),
    (
        MODEL + '[models.m.shard.L00]\nuncompressed = "x.safetensors"',
        '6: [models.m.shard.L00] uncompressed = "x.safetensors": must be the path of a .mlpackage '
        "or .mlmodelc.",
    ),
    (
        MODEL + '[models.m.shard.L00]\nreference = "float16"',
        "6: [models.m.shard.L00] reference = \"float16\": must be 'float32' (needs a family), "
        "'none', or the path of a .mlpackage, a .mlmodelc or golden .safetensors or .npz.",
    ),
    (
        MODEL.replace("llama", "zaya") + "variant = 'note'",
        "5: [models.m] variant = \"note\": family 'zaya' has the variants 'published' and 'notes'.",
    ),
    (
        MODEL + "[models.m.shard.head.0]\nreference = 'none'",
        "5: [models.m.shard.head] unknown key '0': a shard id with a dot is written in quotes, "
        '[models.m.shard."head.0"].',
    ),
    (
        MODEL + "[models.m.shard.L00]\nfamily = 'llama'",
        "6: [models.m.shard.L00] unknown key 'family': the keys here are artifact, compression, "
        "function, inputs, policy, ports, probes, reference, uncompressed.",
    ),
    (
        MODEL + "[[models.m.prompts]]\ntext = 'x'",
        "5: [[models.m.prompts]] 'name' is missing; add it.",
    ),
    (
        "[models.'a b'.shard.x]\nartifact = 'x.mlpackage'\nreference = 'none'",
        "1: [models.\"a b\"] must be letters, digits, '_', '-' and '.'.",
    ),
    (
        MODEL + "[models.m.shard.'a b']",
        "5: [models.m.shard.\"a b\"] must be a shard id such as L00, or a glob such as 'L*' "
        "(letters, digits, _.-).",
    ),
    (
        PRUNE,
        "5: [models.m.compression] needs exactly one of target_sparsity, n_m_ratio, threshold.",
    ),
    (
        PRUNE + "target_sparsity = 0.5\nthreshold = 0.1",
        "5: [models.m.compression] needs exactly one of target_sparsity, n_m_ratio, threshold.",
    ),
    (
        PRUNE + 'target_sparsity = 0.5\njoint = [{ method = "palettize", keep = ["a"] }]',
        '8: [[models.m.compression.joint]] keep = ["a"]: belongs to the method itself.',
    ),
    (
        PALETTE + 'joint = [{ method = "linear", nbits = 4 }]',
        "7: [[models.m.compression.joint]] unknown key 'nbits': the keys here are "
        "block_size, dtype, granularity, joint, keep, method, mode, overrides, weight_threshold.",
    ),
    (
        PALETTE + 'joint = [{ method = "none" }]',
        "7: [[models.m.compression.joint]] method = \"none\": must be one of 'palettize', "
        "'linear', 'prune'.",
    ),
    (
        PALETTE + '[[models.m.compression.overrides]]\nop_type = "convolution"\nnbits = 4',
        '8: [[models.m.compression.overrides]] op_type = "convolution": must be one of '
        f"{', '.join(map(repr, get_args(OpType)))}.",
    ),
    (
        OVERRIDE + 'op_type = "conv"\nnbits = 4',
        "7: [[models.m.compression.overrides]] give either weights or op_type.",
    ),
    (
        MODEL + '[models.m.policy.compression]\nint8-per-tensor-over = "10 MB"',
        '6: [models.m.policy.compression] int8-per-tensor-over = "10 MB": must be a number of '
        'elements or a text such as "10M".',
    ),
    (
        PALETTE + "[[models.m.compression.overrides]]\nnbits = 4",
        "7: [[models.m.compression.overrides]] give either weights or op_type.",
    ),
    (
        OVERRIDE.replace('"palettize"\n', '"palettize"\ncluster_dim = 4\n') + "group_size = 6",
        "8: [[models.m.compression.overrides]] must divide group_size = 6.",
    ),
]


@pytest.mark.parametrize(("table", "lines", "said"), SAID)
def test_values(table: str, lines: str, said: str, complaints: Complaints) -> None:
    last = lines.splitlines()[-1]
    assert complaints(table + lines) == [f"{_place(table, lines)} {last}: {said}"]


@pytest.mark.parametrize(("table", "lines", "told"), TOLD)
def test_keys(table: str, lines: str, told: str, complaints: Complaints) -> None:
    assert complaints(table + lines) == [f"{_place(table, lines)} {told}"]


def _place(table: str, lines: str) -> str:
    """`shards.toml:7: [models.m.compression]`, of the last line."""
    header = [line for line in table.splitlines() if line.startswith("[")][-1]
    return f"shards.toml:{len((table + lines).splitlines())}: {header}"


@pytest.mark.parametrize(("text", "sentence"), SENTENCES)
def test_sentences(text: str, sentence: str, complaints: Complaints) -> None:
    assert complaints(text) == [f"shards.toml:{sentence}"]


def test_an_inherited_mistake_is_said_once(complaints: Complaints) -> None:
    text = OVERRIDE.replace('"palettize"\n', '"palettize"\ncluster_dim = 3\n') + "nbits = 8"
    assert complaints(text) == [
        "shards.toml:7: [models.m.compression] cluster_dim = 3: must divide group_size = 32."
    ]


TEXT = """\
title = "x"

[models.m]
source = { package = "p", file = "f" }
# [not a table]
shards = [
    "L00",  # first
    "L01",
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
'a b' = "é"
"c\\u0064" = 1
"""


def test_lines() -> None:
    lines = key_lines(TEXT)
    m = ("models", "m")
    assert {path: lines[path] for path in lines if path[:2] != m} == {
        ("title",): 1,
        ("models",): 3,
        ("models", "n"): 24,
        ("models", "n", "a b"): 25,
        ("models", "n", "cd"): 26,
    }
    assert {path[2:]: line for path, line in lines.items() if path[:2] == m} == {
        (): 3,
        ("source",): 4,
        ("source", "package"): 4,
        ("source", "file"): 4,
        ("shards",): 6,
        ("shards", 0): 7,
        ("shards", 1): 8,
        ("probes",): 10,
        ("probes", "count"): 10,
        ("shard",): 12,
        ("shard", "head.0"): 12,
        ("shard", "head.0", "policy"): 12,
        ("shard", "head.0", "policy", "fidelity"): 12,
        ("shard", "head.0", "policy", "fidelity", "min-cosine"): 13,
        ("prompts",): 15,
        ("prompts", 0): 15,
        ("prompts", 0, "name"): 16,
        ("prompts", 1): 18,
        ("prompts", 1, "text"): 19,
        ("prompts", 1, "name"): 22,
    }


def test_tables_inside_arrays_of_tables() -> None:
    lines = key_lines("[[a.b]]\n[[a.b]]\n[a.b.c]\nd = 1\n")
    assert lines["a", "b", 1, "c", "d"] == 4


def test_elements_over_several_lines() -> None:
    lines = key_lines('a = [  # [\n { x = 1 }, "]",\n [1,\n 2],\n]\nb = [[1],\n[2]]\n')
    assert lines == {
        ("a",): 1, ("a", 0): 2, ("a", 0, "x"): 2, ("a", 1): 2, ("a", 2): 4, ("a", 2, 0): 4,
        ("a", 2, 1): 4, ("b",): 6, ("b", 0): 6, ("b", 0, 0): 6, ("b", 1): 7, ("b", 1, 0): 7,
    }  # fmt: skip


def test_windows_line_ends() -> None:
    assert key_lines("a = 1\r\nb = 2\r\n")["b",] == 2


def test_the_nearest_line() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("models", "m", "source", "path")) == 4
    assert line_of(lines, ("models", "q")) == 3
    assert line_of(lines, ("defaults",)) is None
    assert line_of(lines, ()) is None
