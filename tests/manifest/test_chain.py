"""`[[models.X.chain]]`: how packages of one's own follow one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.manifest.chain import channels
from tests.manifest.conftest import Complaints, Read

CHAIN = """
[models.own]
{keys}
[[models.own.chain]]
shard = "first"
takes = {{ x = "x" }}
gives = {{ hidden = "x", weights = "routing" }}
[[models.own.chain]]
shard = "last"
takes = {{ x = ["x", "routing[0:2]"] }}
appends = {{ y = "logits" }}
{more}
[models.own.shard.first]
artifact = "first.mlpackage"
reference = "none"
[models.own.shard.last]
artifact = "last.mlpackage"
reference = "none"
"""


def chain(keys: str = "", more: str = "") -> str:
    return CHAIN.format(keys=keys, more=more)


def test_paths_are_relative_to_the_manifest(read: Read, tmp_path: Path) -> None:
    keys = """
    tokenizer = "tokenizer.json"
    reference = "logits.safetensors"
    prompts = [{ name = "a", ids = [1, 2] }]
    embedding = { file = "weights.gguf#token_embd.weight", scale = 2.0 }
    """
    (model,) = read(chain(keys)).models
    assert model.tokenizer == tmp_path / "tokenizer.json"
    assert model.reference == tmp_path / "logits.safetensors"
    assert model.embedding is not None
    assert model.embedding.path == tmp_path / "weights.gguf"
    assert (model.embedding.name, model.embedding.scale) == ("token_embd.weight", 2.0)
    assert [list(entry.outputs) for entry in model.chain] == [
        [("hidden", "x", "set"), ("weights", "routing", "set")],
        [("y", "logits", "append")],
    ]
    assert model.shards[0].probes.kinds == ("gaussian",)


def test_a_file_of_logits_answers_no_prompt(complaints: Complaints) -> None:
    keys = """
    reference = "logits.safetensors"
    prompts = [{ name = "a", ids = [1, 2], answer = 3 }]
    """
    (line,) = complaints(chain(keys))
    assert "answer = 3: needs a reference that runs, not a file" in line


@pytest.mark.parametrize(
    ("reference", "stream", "part"),
    [("x", "x", slice(None)), ("x[3]", "x", slice(3, 4)), ("a.b[0:8]", "a.b", slice(0, 8))],
)
def test_channels_of_a_stream(reference: str, stream: str, part: slice) -> None:
    assert channels(reference) == (stream, part)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (chain().replace('shard = "last"\ntakes', 'shard = "lost"\ntakes'),
         'shard = "lost": is none of this model\'s shards; nearest: last, first.'),
        (chain().replace('shard = "last"\ntakes', 'shard = "first"\ntakes'),
         'shard = "first": is in the chain already; name it once.'),
        (chain().replace("routing[0:2]", "router[0:2]"),
         "no package before it gives the stream 'router'; a chain begins with 'x', and others "
         "are what packages before it give."),
        (chain(more='times = "gate[0]"'),
         "times = \"gate\": no package before it gives the stream 'gate'"),
        (chain().replace('"logits"', '"words"'),
         "'chain' never gives the stream 'logits'; let the last package give it"),
        (chain().replace('appends = { y = "logits" }', ""),
         "no output is used; give gives, adds or appends."),
        (chain(more='gives = { y = "x" }'), "names the output 'y' twice; give it one stream."),
        (chain(more='feedback = { y = "x" }'),
         "the input 'x' has a stream and feedback; give it one."),
        (chain().replace("routing[0:2]", "routing[0-2]"),
         "must be a stream such as 'x', or channels of it: 'x[3]' or 'x[0:8]'."),
        (chain('family = "llama"\nsource = { seeded = 1 }\nshards = "L00-L01"'),
         "'chain' is for packages of your own; a family wires its shards."),
        (chain('reference = "nowhere:logits"'),
         "reference = \"nowhere:logits\": 'nowhere' is not a module in the manifest's folder or "
         "an installed one."),
        (chain('embedding = { file = "e.bin" }'), "must be FILE.npy, or FILE#NAME of a .npz"),
        (chain('embedding = { file = "e.npz" }'),
         "give the tensor's name, FILE#NAME, of .npz, .safetensors and .gguf."),
        ('[models.own]\ntokenizer = "t.json"\n[models.own.shard.a]\nartifact = "a.mlpackage"\n'
         'reference = "none"',
         "'tokenizer' needs a chain; say how the packages follow in [[models.own.chain]]."),
        ('[models.own.policy.behaviour]\nmin-top1 = 0.5\n[models.own.shard.a]\n'
         'artifact = "a.mlpackage"\nreference = "none"',
         "is never asked: nothing says how shards follow one another; add a chain"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(complaints: Complaints, text: str, complaint: str) -> None:
    assert any(complaint in line for line in complaints(text))
