"""What `pytest-ane init --from` and `try` make of packages, folders of them, and torch modules."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pytest_ane.manifest import Manifest, parse
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.tools._init_source import of_source
from tests.anemll import save_folder
from tests.packages import save_layers
from tests.tools.conftest import Says


def made(source: Path | str, folder: Path, *references: Path | str, inputs: tuple[str, ...] = ()
         ) -> Manifest:  # fmt: skip
    manifest = folder / "shards.toml"
    found = of_source(str(source), manifest, [*map(str, references)], inputs)
    for name, data in found.files.items():
        (folder / name).write_bytes(data)
    return parse(found.text, manifest)


def test_packages_of_a_folder_have_their_plain_forms_for_references(tmp_path: Path) -> None:
    for seed, name in enumerate(("encoder-fp16", "encoder-4bit", "encoder_int8", "other")):
        save_layers(tmp_path, seed=seed).rename(tmp_path / f"{name}.mlpackage")
    plain = tmp_path / "encoder-fp16.mlpackage"
    shards = made(tmp_path, tmp_path).shards
    assert {shard.id: shard.reference for shard in shards} == {
        "encoder-4bit": plain, "encoder_int8": plain, "other": "none",
    }  # fmt: skip


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stacks")
    save_folder(folder / "fp16")
    return folder / "fp16"


def test_a_stack_is_a_chain_from_ids_to_logits(stack: Path, tmp_path: Path) -> None:
    (model,) = made(stack, tmp_path).models
    assert [entry.shard for entry in model.chain] == ["embeddings", "chunk1", "chunk2", "head"]
    assert [entry.functions for entry in model.chain] == [(), *[("infer", "prefill")] * 2, ()]
    assert [*model.chain[-1].appends] == [f"logits{i}" for i in range(1, 9)]
    assert (model.context, model.max_tokens) == (64, 16)
    assert model.shards[1].inputs["causal_mask"].kind == "causal-mask"
    assert sum(len(prompt.ids) for prompt in model.prompts) > 60
    assert all(id < 512 for prompt in model.prompts for id in prompt.ids)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f / "meta.yaml").write_text("a: ["), "has no table model_info.parameters"),
        (lambda f: (f / "meta.yaml").write_text("model_info: {parameters: {num_chunks: 2}}"),
         "context_length is None; give a whole number above 0"),
        (lambda f: shutil.rmtree(f / "tiny_FFN_PF_chunk_02of02.mlpackage"),
         "needs 2 such as NAME_FFN_PF_chunk_01of02, and"),
        (lambda f: shutil.rmtree(f / "tiny_lm_head.mlpackage"), "needs 1 such as NAME_lm_head,"),
        (lambda f: shutil.copytree(f / "tiny_embeddings.mlpackage", f / "b_embeddings.mlpackage"),
         "the folder has b_embeddings.mlpackage, tiny_embeddings.mlpackage"),
    ],
)  # fmt: skip
def test_a_stack_that_is_not_whole(stack: Path, tmp_path: Path, change: object, says: str) -> None:
    folder = tmp_path / "stack"
    shutil.copytree(stack, folder)
    change(folder)  # type: ignore[operator]
    with pytest.raises(AneError, match=says):
        made(folder, tmp_path)


NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x, y):
        return self.layer(x), {outputs}

def pair():
    return Net(), (torch.rand(1, 8), torch.rand(1, 3))

def tokens():
    return Net(), (torch.ones(1, 8, dtype=torch.int32), torch.rand(1, 3))

def number():
    return 1

def broken():
    raise OSError("no weights here")
"""


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a `net.py` of its own."""
    monkeypatch.delitem(sys.modules, "net", raising=False)


@pytest.mark.parametrize("source", ["net.py:Net", "net.py:pair"])
def test_a_torch_module_is_a_builder(source: str, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(NET.replace("{outputs}", "y * 2"))
    inputs = ("x=1,8", "y=1,3") if source.endswith("Net") else ()
    manifest = made(f"{tmp_path / source}", tmp_path, inputs=inputs)
    (shard,) = manifest.shards
    assert manifest.models[0].builder == "try_net:build"
    assert shard.id in ("net", "pair")
    text = (tmp_path / "try_net.py").read_text()
    assert 'inputs=(Port("x", (1, 8)), Port("y", (1, 3)), )' in text
    assert 'outputs=(Port("y0", (1, 4)), Port("y1", (1, 3)), )' in text


@pytest.mark.parametrize(
    ("source", "inputs", "says"),
    [
        ("net.py:Net", (), "nobody knows the shapes of x, y; say --input x="),
        ("net.py:Net", ("z=1",), "takes x, y; name one of them"),
        ("net.py:Net", ("x=a",), "is no NAME=SHAPE"),
        (
            "net.py:Net",
            ("x=1,8",),
            r"forward of x \[1, 8\] in float32 ended in TypeError: .* missing 1",
        ),
        ("net.py", (), "name a class or a function of it, as .*net.py:Net"),
        ("other.txt", (), "no package and no model, but a .txt file"),
        ("net.py:none", (), "has no 'none'"),
        ("none.py:Net", (), "no such file"),
        ("net.py:number", (), r"gives a int; let it give a torch.nn.Module"),
        ("net.py:tokens", (), "the input x is no tensor of floats"),
        ("net.py:broken", (), r"broken\(\) ended in OSError: no weights here"),
    ],
)
def test_what_is_no_torch_module(
    source: str, inputs: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(NET.replace("{outputs}", "y"))
    (tmp_path / "other.txt").write_text("")
    with pytest.raises(AneError, match=says):
        made(f"{tmp_path / source}", tmp_path, inputs=inputs)


def test_nothing_to_gate(tmp_path: Path, says: Says) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for source, text in {
        empty: "the folder is empty", tmp_path / "no.mlpackage": "no such package",
        tmp_path / "no": "no such file or folder",
    }.items():  # fmt: skip
        (*_, said) = says("try", source, "--out", tmp_path / "out", code=1)
        assert text in said
    assert not (tmp_path / "out").exists()
