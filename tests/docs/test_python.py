"""Every Python block of the docs is run, with what its page's words say is there."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from pytest_ane.mlprogram.model import read_model
from tests.docs.pages import PAGES, ROOT
from tests.forked import Forge
from tests.gates.placement.plans.samples import info

BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
"""Those with a title are files of a session: test_commands runs them."""
_TORCH = """
import numpy as np, torch
from torch import Tensor
from pytest_ane.models.families import Conversion, Port
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3MLP
weights = lambda shard: Qwen3MLP(Qwen3Config(hidden_size=128, intermediate_size=256)).state_dict()
class FeedForward(torch.nn.Module):
    def __init__(self, weights=None):
        super().__init__()
        self.layer = torch.nn.Conv2d(128, 128, 1)
    def forward(self, x):
        return self.layer(x)
"""
BEFORE = {
    "explanations/executor.md": "import numpy as np; x = np.ones((1, 8, 1, 1), np.float16)",
    "how-to/own-model.md": _TORCH,
    "how-to/own-packages.md": f"{_TORCH}\nmodule = torch.nn.Linear(64, 8)",
    "reference/families/decoders.md": "from dataclasses import replace\n"
    "from pytest_ane.models.families._decoders import *\n"
    "from pytest_ane.models.families._decoders import biases, plain\n"
    "from pytest_ane.models.families.decoder import *",
    "reference/placement.md": "path, size = 'some.mlpackage', 1000",
}
"""What a page's reader has before."""
AFTER = {
    "how-to/own-model.md": "build('ffn.0').module(torch.ones(1, 128, 2, 1))",
    "reference/segmenter.md": "assert operation.unit",
    "how-to/plans.md": "assert verdict.gate == 'placement'",
}


def _blocks() -> Iterator[ParameterSet]:
    for page in PAGES:
        name = page.relative_to(ROOT / "docs" if page.is_relative_to(ROOT / "docs") else ROOT)
        for i, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8"))):
            yield pytest.param(name.as_posix(), textwrap.dedent(match[2]), id=f"{name}-{i}")


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), [*_blocks()])
def test_block(page: str, block: str, packages: Path, forge: Forge, tmp_path: Path) -> None:
    for name in ("some", "model", "x", "shard"):
        shutil.copytree(packages / "some.mlpackage", tmp_path / f"{name}.mlpackage")
    (conv,) = (op for op in read_model(tmp_path / "x.mlpackage").program.walk() if op.op == "conv")
    (tmp_path / "plan.json").write_text(json.dumps({"infos": [info(conv.name)]}))
    after = AFTER.get(page, "") if "Port(" in block or page != "how-to/own-model.md" else ""
    (tmp_path / "block.py").write_text("\n".join((BEFORE.get(page, ""), block, after)))
    done = forge.run(["runpy", "block"], tmp_path)
    assert done.returncode == 0, done.stdout
