"""Compression put into a manifest: everything else stays, and what is written is what is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.manifest import Linear, Palettize, Settings, Shard, load
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.tools.recommend import rewritten, save

HEAD = """\
# Ours, do not touch.
[models.m]  # the model
family = "llama"
source = { seeded = 1, config = { hidden_size = 64 } }
shards = "L00-L02"
"""
SIX = Palettize(nbits=6, group_size=16)
MIXED = Palettize.model_validate(
    {"nbits": 6, "group_size": 16, "keep": ["r*"], "overrides": [{"weights": "q*", "nbits": 8}]}
)
WANTED: dict[str, Settings] = {"L00": SIX, "L01": Linear(), "L02": SIX}

LAYOUTS = {
    "none": HEAD,
    "table": f'{HEAD}\n# why\n[models.m.compression]\nnbits = 4  # coarse\nmethod = "palettize"\n',
    "inline": f'{HEAD}compression = {{ method = "linear" }}\nmax-tokens = 8\n',
    "dotted": f'{HEAD}compression.method = "linear"\ncompression.dtype = "int8"\n',
    "shards": f"""{HEAD}
[models.m.compression]
method = "linear"

[models.m.shard."L0[12]".compression]
method = "palettize"
overrides = [
    {{ weights = "q*", nbits = 8 }},  # sharp
]

[models.m.probes]
count = 3  # few
""",
    "array of tables": f"""{HEAD}
[models.m.compression]
method = "palettize"
[[models.m.compression.overrides]]
weights = "q*"
nbits = 8
[models.m.policy.fidelity]
min-cosine = 0.5
""",
    "comments below": f"""{HEAD}
[models.m.compression]
method = "linear"

# Shards that are special.
[models.m.shard."L*".compression]
method = "palettize"
[[models.m.shard."L*".compression.overrides]]
weights = "q*"
nbits = 8
# Few.
[models.m.probes]
count = 3

[models.m.shard.L02.compression]
method = "none"
# The end.
""",
    "out of order": f"""[models.m.shard."L*".compression]
method = "linear"
{HEAD}[models.n]
family = "llama"
source = {{ seeded = 2 }}
shards = "L00"
[models.m.shard.L00]
probes.count = 4  # few
compression.method = "none"
[models.n.probes]
count = 3
""",
    "shard inline": f"""{HEAD}[models.m.shard]
L00 = {{ probes = {{ count = 4 }} }}
L01.compression.method = "none"
""",
    "another model": f"""{HEAD}
[models.n]
family = "llama"
source = {{ seeded = 2 }}
shards = "L00"
compression = {{ method = "linear" }}
""",
}


@pytest.mark.drawn
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "wanted",
    [
        WANTED,
        dict.fromkeys(WANTED, MIXED),
        {**WANTED, "L02": MIXED},
        dict.fromkeys(WANTED, Linear()),
    ],
)
def test_it_says_what_was_meant(layout: str, wanted: dict[str, Settings], tmp_path: Path) -> None:
    file = tmp_path / "shards.toml"
    text = LAYOUTS[layout]
    file.write_text(text)
    before = load(file)
    new = rewritten(text, file, "m", wanted)
    file.write_text(new)
    after = load(file)
    assert {s.id: s.compression for s in after.model_of("m").shards} == wanted
    for model in before.models:
        assert list(map(rest, after.model_of(model.name).shards)) == list(map(rest, model.shards))
    if "[models.n]" in text:
        assert after.model_of("n").shards == before.model_of("n").shards
    # Comments stay, in their order, but for those beside keys of compression.
    kept = [line for line in text.splitlines() if "#" in line]
    kept = [line for line in kept if "sharp" not in line and "coarse" not in line]
    assert [line for line in new.splitlines() if "#" in line] == kept
    assert rewritten(new, file, "m", wanted) == new


def rest(shard: Shard) -> object:
    return shard.model_dump(exclude={"compression"})


@pytest.mark.parametrize(
    "text",
    [
        'm = { family = "llama", source = { seeded = 1 }, shards = "L00" }',
        'm.family = "llama"\nm.source.seeded = 1\nm.shards = "L00"\n'
        'm.shard.L00 = { compression = { method = "linear" } }',
    ],
)
def test_a_layout_without_a_place_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"cannot be changed in place; replace its") as caught:
        rewritten(f"[models]\n{text}", tmp_path / "shards.toml", "m", {"L00": SIX})
    assert "[models.m.compression]" in str(caught.value)
    assert "group_size = 16" in str(caught.value)


def test_writing_is_atomic_and_keeps_mode_and_link(tmp_path: Path) -> None:
    file, link = tmp_path / "shards.toml", tmp_path / "link.toml"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    save(link, "new")
    assert (file.read_text(), link.is_symlink(), file.stat().st_mode & 0o777) == (
        "new",
        True,
        0o640,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.toml", "shards.toml"]
    with pytest.raises(ManifestError, match="cannot be written: No such file"):
        save(tmp_path / "none" / "shards.toml", "new")
