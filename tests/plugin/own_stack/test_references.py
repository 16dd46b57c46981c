"""What a stack of one's own is held against: a function, golden logits, packages, evidence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pytest_ane.gates.behaviour import Behaviour
from pytest_ane.gates.registry import GATES
from pytest_ane.mac.testing import Replayer, Script
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.project.project import read_project
from tests.plugin.conftest import Project
from tests.plugin.own_stack.faults import EXAMPLE, of_manifest, own_stack

pytestmark = pytest.mark.slow
PROMPTS = {"short": [5, 17, 80, 2, 41, 9], "long": [7, 7, 30, 61, 12, 95, 0, 44, 23, 8, 71, 3, 19]}
FUNCTION = 'reference = "own_stack:reference"'


def behaviour(stack: Path) -> Behaviour:
    with read_project(stack / "shards.toml", stack / "cache").use() as project:
        measured: Behaviour = GATES["behaviour"].measure(project.stack("mine"))
    return measured


def golden(greedy: int = 4, *, states: bool = False) -> dict[str, Any]:
    """What the reference says to the prompts, with the likeliest tokens after them."""
    tensors: dict[str, Any] = {}
    for name, ids in PROMPTS.items():
        text = list(ids)
        for _ in range(greedy - 1):
            text.append(int(own_stack.reference(text)["logits"][-1].argmax()))
        told = own_stack.reference(text)
        tensors[f"{name}.logits"] = np.ascontiguousarray(told["logits"].numpy())
        tensors[f"{name}.ids"] = np.array(ids)
        for shard, rows in own_stack.reference(ids).items() if states else ():
            if shard != "logits":
                tensors[f"{name}/{shard}"] = np.ascontiguousarray(rows.numpy())
    return tensors


def test_a_function_s_own_answer_is_judged_shard_by_shard(stack: Path) -> None:
    """Three tokens more than the prompt has, for the stack and for each package alone."""
    plain = behaviour(stack)
    of_manifest(('name = "short"', 'name = "short", answer = 3'))(stack)
    answered = behaviour(stack)
    counts = [[len(prompt.positions) for prompt in each.prompts] for each in (plain, answered)]
    assert counts == [[6, 13], [9, 13]]
    assert [p.greedy for p in answered.prompts] == [p.greedy for p in plain.prompts]
    assert [alone.shard for alone in answered.alone] == [alone.shard for alone in plain.alone]
    assert all(p.top1 for prompt in answered.prompts for p in prompt.positions)


@pytest.mark.parametrize("states", [False, True])
def test_golden_logits_say_what_the_function_says(stack: Path, *, states: bool) -> None:
    function = behaviour(stack)
    save_file(golden(states=states), stack / "logits.safetensors")
    of_manifest((FUNCTION, 'reference = "logits.safetensors"'))(stack)
    file = behaviour(stack)
    for told, read in zip(function.prompts, file.prompts, strict=True):
        assert (told.greedy, told.expected) == (read.greedy, read.expected)
        assert told.positions[-1].kl == pytest.approx(read.positions[-1].kl, abs=1e-5)
    assert [alone.shard for alone in file.alone] == [alone.shard for alone in function.alone]


@pytest.mark.parametrize(("compressed", "proves"), [("", False), ("conv", True)])
def test_a_stack_is_not_its_own_reference(stack: Path, compressed: str, *, proves: bool) -> None:
    """Where nothing is compressed only fp16 is compared; one package that is tells something."""
    for plain in (stack / "packages").glob("*-fp16.mlpackage"):
        name = plain.name.replace("-fp16", "")
        if name != f"{compressed}.mlpackage":
            shutil.rmtree(plain.with_name(name))
            shutil.copytree(plain, plain.with_name(name))
    of_manifest((FUNCTION, ""))(stack)
    if proves:
        assert behaviour(stack).prompts
        return
    with pytest.raises(AneError, match="every package is its own reference"):
        behaviour(stack)


@pytest.mark.parametrize("states", [True, False])
def test_drift_needs_what_every_shard_gives(stack: Path, *, states: bool) -> None:
    """From the file or function that tells it, or from a package of each shard."""
    save_file(golden(states=states), stack / "logits.safetensors")
    of_manifest(
        (FUNCTION, 'reference = "logits.safetensors"'),
        ('reference = "packages/conv-fp16.mlpackage"', 'reference = "none"'),
    )(stack)
    with read_project(stack / "shards.toml", stack / "cache").use() as project:
        model: Any = project.model("mine")
        with nullcontext() if states else pytest.raises(AneError, match="conv"):
            model.check_compared()


def _without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.pop(name)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_without("long.logits"), "has no tensor 'long.logits'; record it again"),
        (lambda t: t["short.ids"].__iadd__(1), "'short' is of other token ids; record it again"),
        (
            lambda t: t.update({"short.logits": t["short.logits"][:7].copy()}),
            "has logits for 2 greedy tokens, and greedy = 4 asks for more",
        ),
        (
            lambda t: t.update({"short.logits": t["short.logits"][:, :90].copy()}),
            "the reference gives 90 logits for a position of 'short', and the chain 96.",
        ),
        (lambda t: t["short.logits"].fill(np.nan), "they must be finite"),
    ],
)
def test_a_golden_file_of_something_else(
    stack: Path, change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    tensors = golden()
    change(tensors)
    save_file(tensors, stack / "logits.safetensors")
    of_manifest((FUNCTION, 'reference = "logits.safetensors"'))(stack)
    with pytest.raises(AneError) as error:
        behaviour(stack)
    assert sentence in str(error.value)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("raise ValueError('no weights')", "failed: ValueError: no weights (mine_only.py:2)."),
        ("return [[1.0, 2.0]]", "gave logits of the shape [1, 2] for 6 tokens; return [6, V]."),
        ("return {'logits': 3.0}", "gave logits of the shape [] for 6 tokens; return [6, V]."),
        ("return {'logits': [[0.0] * 96] * len(ids), 'router': [[1.0]]}", "router [T, 68]"),
        ("raise SystemExit(3)", "failed: SystemExit: 3"),
    ],
)
def test_a_function_that_gives_something_else(
    stack: Path, monkeypatch: pytest.MonkeyPatch, code: str, sentence: str
) -> None:
    monkeypatch.syspath_prepend(str(stack))
    monkeypatch.delitem(__import__("sys").modules, "mine_only", raising=False)
    (stack / "mine_only.py").write_text(f"def reference(ids):\n    {code}\n")
    of_manifest((FUNCTION, 'reference = "mine_only:reference"'))(stack)
    with pytest.raises(AneError) as error:
        behaviour(stack)
    assert sentence in str(error.value)


def test_packages_alone_are_a_reference(stack: Path) -> None:
    of_manifest((FUNCTION, 'reference = "packages"'))(stack)
    measured = behaviour(stack)
    assert min(p.centred_cosine for prompt in measured.prompts for p in prompt.positions) > 0.99
    assert len(measured.alone) == 8


@pytest.mark.drawn(2)
@pytest.mark.usefixtures("genuine")
def test_what_a_mac_recorded_is_verified_elsewhere(project: Project, packages: Path) -> None:
    shutil.copytree(packages, project.path / "packages")
    shutil.copy(EXAMPLE / "own_stack.py", project.path)
    text, table = (EXAMPLE / "shards.toml").read_text(), "[models.mine.policy.behaviour]\n"
    assert table in text
    project.manifest(text.replace(table, f'{table}require = "device"\n'))
    with Replayer(Script()):
        project.gate("--ane-backend=coreml", "--ane-record", "-k", "behaviour")
    result = project.gate("--ane-backend=cpu", "-k", "behaviour")
    result.assert_outcomes(passed=1, deselected=27)
    embedding = project.path / "packages" / "embedding.npy"
    np.save(embedding, np.load(embedding) * 2)
    result = project.gate("--ane-backend=cpu", "-k", "behaviour")
    result.assert_outcomes(failed=1, deselected=27)
    result.stdout.fnmatch_lines(["mine: behaviour unproven"])
