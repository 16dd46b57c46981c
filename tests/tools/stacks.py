"""A tiny Llama of six blocks for the commands that run a whole stack; some shards spoilt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.plugin.projects import make_llama

BLOCKS = 6

_MANIFEST = """\
[models.deep]
family = "llama"
source = {{ path = "{source}" }}
shards = "L00-L{last:02d}, head.0-head.1"
max-tokens = 16

[models.deep.policy.behaviour]
min-greedy = 3
min-positions = {positions}

[[models.deep.prompts]]
name = "counting"
ids = [5, 17, 40, 3, 22, 9]
greedy = {greedy}

[[models.deep.prompts]]
name = "other"
ids = [2, 61, 33, 8]
greedy = {greedy}
"""
_SPOILT = """
[models.deep.shard."{shard}".compression]
method = "palettize"
nbits = 1
granularity = "per_tensor"
weight_threshold = 0
"""


class Stacks:
    """Manifests over one source, and a cache that all workers fill as tests run."""

    def __init__(self, folder: Path, cache: Path, blocks: int = BLOCKS) -> None:
        self.cache = cache
        self._last = blocks - 1
        self._source = make_llama(folder / "deep.gguf", blocks=blocks)

    def write(
        self, path: Path, spoilt: Sequence[str] = (), greedy: int = 3, positions: int = 8
    ) -> None:
        """A manifest whose shards are in fp16 but for the spoilt ones."""
        text = _MANIFEST.format(
            source=self._source, last=self._last, greedy=greedy, positions=positions
        )
        path.write_text(text + "".join(_SPOILT.format(shard=name) for name in spoilt))
