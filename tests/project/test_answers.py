"""A model whose prompts have the reference's own answers judged behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.project.models import OpenModel
from pytest_ane.project.project import read_project
from tests.plugin.projects import LLAMA, make_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    make_llama(folder / "mini.gguf")
    return folder


def opened(folder: Path, answer: int) -> OpenModel:
    text = LLAMA.format(source=folder / "mini.gguf")
    (folder / "shards.toml").write_text(f"{text}answer = {answer}\n")
    model = read_project(folder / "shards.toml", folder / "cache", backend_name="cpu").model("mini")
    assert isinstance(model, OpenModel)
    return model


def test_the_whole_model_is_judged_on_answers_and_shards_are_probed_with_prompts(
    folder: Path,
) -> None:
    plain, answered = opened(folder, 0), opened(folder, 4)
    before, after = plain.golden[0], answered.golden[0]
    assert after.prompt == before.ids
    assert after.ids[len(before.ids) :][:3] == before.greedy == after.greedy
    assert after.answered == 4
    assert after.logits.shape == (len(before.ids) + 4, before.logits.shape[1])
    assert [len(x) for x in answered.states("counting", "L01")] == [len(after.ids)] * 2
    assert [len(x) for x in plain.states("counting", "L01")] == [len(before.ids)] * 2
    assert answered.prompts == plain.prompts
    assert plain.prompt_spec != answered.prompt_spec


def test_an_answer_must_fit_the_shards(folder: Path) -> None:
    with pytest.raises(Exception, match="with 250 greedy ones it must fit max-tokens = "):
        _ = opened(folder, 250).prompts
