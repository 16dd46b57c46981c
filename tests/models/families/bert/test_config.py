"""What of a BERT's folder is honoured, and what is refused by the file's own names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pytest_ane.make import Cache
from pytest_ane.manifest import Model, Shard, SourceTable
from pytest_ane.mlprogram.errors import ExecutionError, ManifestError, SourceError
from pytest_ane.models.families import Cut, trait
from pytest_ane.models.families.registry import get_family
from pytest_ane.models.sources import open_source
from pytest_ane.project.models import OpenModel
from tests.models.families.bert.oracle import CASES, save_modules


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    CASES[0].save(tmp_path)
    return tmp_path


def change(folder: Path, **keys: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"model_type": "xlm-roberta"}, "architecture 'xlm-roberta', expected 'bert'"),
        ({"model_type": "roberta"}, "architecture 'roberta', expected 'bert'"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu', and family 'bert' computes gelu, "),
        ({"hidden_act": ["gelu"]}, "hidden_act is \"['gelu']\", and family 'bert' computes gelu, "),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"add_cross_attention": True}, "config.json has add_cross_attention True"),
        ({"num_attention_heads": 5}, "5 heads do not divide 32 channels"),
        ({"num_hidden_layers": 1}, "by its configuration 1 layers, so the last ones would be left"),
        ({"max_position_embeddings": 8}, "has 8 positions, and max-tokens is 24; lower max-tokens"),
        ({"sentence_transformers": {"pooling": "last"}}, "has pooling 'last'"),
    ],
)
def test_refused(folder: Path, keys: dict[str, Any], sentence: str) -> None:
    change(folder, **keys)
    with pytest.raises(SourceError) as refusal:
        CASES[0].open(folder)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("pooling", "more", "sentence"),
    [
        ("max_tokens", (), "has pooling 'max' and normalize True"),
        ("lasttoken", (), "has pooling 'lasttoken'"),
        ("mean_tokens", ("Dense",), "modules.json has Dense, which family 'bert' does not compute"),
    ],
)
def test_other_modules_are_refused(
    folder: Path, pooling: str, more: tuple[str, ...], sentence: str
) -> None:
    save_modules(folder, pooling, normalized=True, more=more)
    with pytest.raises(SourceError, match=sentence):
        CASES[0].open(folder)


def test_the_newer_form_of_the_pooling_s_file(folder: Path) -> None:
    save_modules(folder, "cls_token", normalized=True)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    config = CASES[0].open(folder).config
    assert (config.pooling, config.normalized) == ("mean", True)


@pytest.mark.parametrize("text", ["{", "{}", '[{"path": "../x", "type": "a.Pooling"}]', "[1]"])
def test_damaged_modules(folder: Path, text: str) -> None:
    (folder / "modules.json").write_text(text)
    with pytest.raises(SourceError, match=r"modules\.json"):
        CASES[0].open(folder)


def test_pooling_of_the_manifest_wins(folder: Path) -> None:
    save_modules(folder, "mean_tokens", normalized=True)
    own = {"sentence_transformers": {"pooling": "cls"}}
    source = open_source(SourceTable(path=folder, config=own), get_family("bert").spread)
    config = get_family("bert").open_model(source, Cut(("L00", "pooling"), max_tokens=8)).config
    assert (config.pooling, config.normalized) == ("cls", True)


def test_a_tensor_that_would_be_left_out(folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"classifier.weight": np.zeros((2, 32), np.float32)}, file)
    with pytest.raises(SourceError, match=r"does not compute with its tensor 'classifier\.weight'"):
        CASES[0].open(folder)


@pytest.mark.parametrize("shard", ["head.0", "L0a", "pooler"])
def test_other_shards(shard: str) -> None:
    with pytest.raises(ManifestError, match=f"has no shard '{shard}'; blocks are L00"):
        get_family("bert").wiring(["L00", shard])


def test_blocks_run_in_order_and_pooling_is_last() -> None:
    wires = get_family("bert").wiring(["pooling", "L01", "L00"])
    assert [wire.shard for wire in wires] == ["L00", "L01", "pooling"]
    assert [wire.is_head for wire in wires] == [False, False, True]


class TestLayout:
    def test_padding_is_masked_and_unlike_the_text(self, folder: Path) -> None:
        layout = CASES[0].open(folder, length=5).layout("L00")
        hidden = np.arange(1, 65, dtype=np.float32).reshape(2, 32)
        inputs = layout.inputs(hidden)
        assert inputs["mask"].tolist() == [[[[0, 0, -1e4, -1e4, -1e4]]]]
        assert inputs["x"].shape == (1, 32, 5, 1)
        assert (inputs["x"][0, :, 2:, 0] == -hidden[1][:, None]).all()
        assert (layout.output({"y": inputs["x"]})[:2] == hidden).all()

    def test_a_text_is_one_call(self, folder: Path) -> None:
        layout = CASES[0].open(folder, length=5).layout("L00")
        for rows, start in ((6, 0), (2, 1)):
            with pytest.raises(ExecutionError, match="up to 5 positions in one call"):
                layout.inputs(np.ones((rows, 32), np.float32), start)

    def test_what_is_told_of_an_encoder(self, folder: Path) -> None:
        model = CASES[0].open(folder)
        layouts = [model.layout(shard) for shard in ("L00", "pooling")]
        assert [layout.sees for layout in layouts] == ["call", "call"]
        assert not any(trait(layout, "causal") for layout in layouts)
        assert [trait(layout, "pools") for layout in layouts] == [False, True]


def test_seeded_weights_need_no_file() -> None:
    config = {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "vocab_size": 61,
        "num_hidden_layers": 2,
    }  # fmt: skip
    family = get_family("bert")
    source = open_source(SourceTable(seeded=3, config=config), family.spread)
    model = family.open_model(source, Cut(("L00", "L01", "pooling"), max_tokens=8))
    x = model.embed([3, 1, 4])
    for shard in ("L00", "L01"):
        (x,) = model.reference(shard)([x])
    assert x.shape == (3, 32)
    assert 0.5 < x.std() < 2


@pytest.mark.parametrize(("family", "shards"), [("bert", ("L00", "pooling")), ("llama", ("L00",))])
def test_commands_that_compare_logits_refuse_an_encoder(
    family: str, shards: tuple[str, ...], tmp_path: Path
) -> None:
    """`drift`, `bisect` and `recommend` ask this first."""
    listed = tuple(Shard(model="m", id=shard, family=family) for shard in shards)
    opened = OpenModel(Model(name="m", family=family, shards=listed), Cache(tmp_path))
    if family == "llama":
        opened.check_logits()
        return
    with pytest.raises(ManifestError, match="m is an encoder, and this command compares logits"):
        opened.check_logits()
