"""`[models.NAME.shard.ID.inputs.INPUT]`: what a package's own inputs are drawn from."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.manifest.inputs import OPTIONS, Input, questions
from tests.manifest.conftest import Complaints, Read

OWN = """\
[models.own.shard."*".inputs.tokens]
kind = "ids"
count = 256

[models.own.shard."*".inputs.mask]
kind = "causal-mask"
window = 8
position-axis = -2

[models.own.shard.L00]
artifact = "L00.mlpackage"
reference = "none"

[models.own.shard.L01]
artifact = "L01.mlpackage"
reference = "L01-fp16.mlpackage"
"""
FAMILY = '[models.mini]\nfamily = "llama"\nsource = { seeded = 1 }\nshards = "L00-L01"\n'


def test_every_shard_of_a_model_has_its_inputs(read: Read) -> None:
    manifest = read(OWN)
    assert [shard.inputs for shard in manifest.shards] == [
        {
            "tokens": Input(kind="ids", count=256),
            "mask": Input(kind="causal-mask", window=8, position_axis=-2),
        }
    ] * 2


def test_a_shard_s_table_is_laid_over_the_model_s(read: Read) -> None:
    more = """
    [models.own.shard."*1".inputs.tokens]
    kind = "ids"
    count = 100
    [models.own.shard."*1".inputs.mask]
    kind = "uniform"
    range = [-1.0, 1.0]
    """
    first, second = read(OWN + more).shards
    assert first.inputs["tokens"].count == 256
    assert second.inputs["tokens"].count == 100
    assert second.inputs["mask"] == Input(kind="uniform", range=(-1.0, 1.0))


def test_a_file_is_relative_to_the_manifest(read: Read, tmp_path: Path) -> None:
    more = '[models.own.shard."*".inputs.x]\nkind = "constant"\nfiles = "data/all.npz#x"\n'
    assert read(OWN + more).shards[0].inputs["x"].file == str(tmp_path / "data/all.npz#x")


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("count = 3", "inputs.x] 'kind' is missing; add it."),
        ('kind = "token"', "kind = \"token\": must be 'normal', 'uniform', "),
        ('kind = "ids"', "inputs.x] 'count' is missing; kind = 'ids' needs it."),
        ('kind = "routing"', "'active' is missing; kind = 'routing' needs it."),
        ('kind = "constant"', "'files' is missing; kind = 'constant' needs it."),
        ('kind = "normal"\ncount = 3', "count = 3: belongs to kind = 'ids', not 'normal'."),
        ('kind = "ids"\ncount = 0', "count = 0: must be greater than or equal to 1."),
        ('kind = "ids"\ncount = 3\nrows = 2', "unknown key 'rows': "),
        ('kind = "uniform"\nrange = [2.0, 1.0]', "must be the least value, then a greater one."),
        ('kind = "one-hot"\naxis = 1\nposition-axis = 1', "are the same; give two axes."),
        ('kind = "uniform"\nfiles = ["a.png"]',
         "belongs to kind = 'image' or 'constant', not 'uniform'."),
        ('kind = "constant"\nfiles = "x.npz"',
         'files = "x.npz": must be FILE.npy, FILE.npz#NAME or FILE.safetensors#NAME.'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(complaints: Complaints, table: str, complaint: str) -> None:
    (line,) = complaints(OWN + '[models.own.shard."*".inputs.x]\n' + table + "\n")
    assert complaint in line


def test_inputs_of_a_family_s_shards_are_an_error(complaints: Complaints) -> None:
    (complaint,) = complaints(FAMILY + '[models.mini.shard."*".inputs.x]\nkind = "normal"\n')
    assert complaint == (
        'shards.toml:5: [models.mini.shard."*".inputs] has no effect, for the family says what its '
        "inputs are; take it out."
    )


def test_every_option_belongs_to_a_kind() -> None:
    options = {option for own in OPTIONS.values() for option in own}
    assert options == set(Input.model_fields) - {"kind"}


def test_a_question_holds_the_options_of_the_kind_alone() -> None:
    asked = Input(kind="ids", count=3).question
    assert asked == {"kind": "ids", "count": 3, "sample": False}
    assert Input(kind="positive").question == {"kind": "positive", "deviation": 1.0}


def test_a_file_counts_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"one")
    (tmp_path / "b.npy").write_bytes(b"one")
    a, b, none = (
        questions({"x": Input(kind="constant", files=(str(tmp_path / name),))})
        for name in ("a.npy", "b.npy", "c.npy")
    )
    assert a == b != none
    assert none["x"] == {"kind": "constant", "files": [["missing", ""]]}
