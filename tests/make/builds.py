"""Builds small shards of every kind, and prints the digests of their packages.

python -m tests.make.builds CACHE forwards|backwards
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pytest_ane.make import Cache, build_shard
from pytest_ane.manifest import Linear, Model, Palettize, Prune, Shard, Uncompressed
from pytest_ane.models.families import Buildable
from pytest_ane.models.families.own import BuilderModel
from tests.models.families.gemma4 import tiny as gemma4
from tests.models.families.llama import tiny as llama
from tests.models.families.zaya import tiny as zaya

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model"
FAST = Palettize(nbits=4, mode="uniform", weight_threshold=0)
SLOW = Palettize(nbits=2, engine="coremltools", mode="uniform", weight_threshold=0)
GROUPED = Palettize(nbits=6, granularity="per_grouped_channel", group_size=16)
INT8 = Linear(weight_threshold=0)
SPARSE = Prune(target_sparsity=0.5, weight_threshold=0, joint=(Palettize(nbits=4),))


def shards() -> Iterator[tuple[Buildable, Shard]]:
    """Blocks, heads, mixtures and packs, with states and without; each way of compressing."""
    own = BuilderModel(Model(name="own", builder="my_model:build", shards=()))
    packs = gemma4.tiny_model(("L00.attn", "L00.p0", "L00.p1"))
    for label, model, name, compression in (
        ("llama", llama.tiny_model(("L00", "head.0")), "L00", FAST),
        ("llama", llama.tiny_model(("L00", "head.0")), "head.0", SLOW),
        ("stateful", llama.tiny_model(context=12), "L00", INT8),
        ("zaya", zaya.tiny_model(), "L00", FAST),
        ("zaya", zaya.tiny_model(), "L01", SPARSE),
        ("gemma4", packs, "L00.attn", Uncompressed()),
        ("gemma4", packs, "L00.p1", FAST),
        ("own", own, "ffn.0", GROUPED),
        ("own", own, "classifier", SPARSE),
    ):
        yield model, Shard(model=label, id=name, max_tokens=4, compression=compression)


def main(root: str, order: str) -> None:
    """Build them in a cache folder."""
    sys.path.append(str(EXAMPLE))
    cache, digests = Cache(Path(root)), {}
    for model, shard in list(shards())[:: -1 if order == "backwards" else 1]:
        built = build_shard(shard, cache, identity={"of": shard.model}, model=partial(_same, model))
        digests[shard.qualified] = built.digest
    print(json.dumps(digests, indent=1, sort_keys=True))


def _same(model: Buildable) -> Buildable:
    return model


if __name__ == "__main__":
    main(*sys.argv[1:])
