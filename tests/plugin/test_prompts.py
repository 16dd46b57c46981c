"""Golden prompts that do not fit: too long, one token alone, tokens the model does not have."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

PROMPT = """
[[models.mini.prompts]]
name = "{name}"
{form}
greedy = {greedy}
"""


def prompted(project: Project, name: str, form: str, greedy: int = 0, kinds: str = "") -> Project:
    """The tiny Llama with this one prompt."""
    text = (project.llama().path / "shards.toml").read_text()
    text = text[: text.index("[[models.mini.prompts]]")]
    if kinds:
        text = text.replace('kinds = ["gaussian", "captured"]', f"kinds = {kinds}")
    return project.manifest(text + PROMPT.format(name=name, form=form, greedy=greedy))


@pytest.mark.parametrize("kind", ["captured", "outlier", "extreme"])
def test_a_prompt_longer_than_the_shards_take(project: Project, kind: str) -> None:
    prompted(project, "long", f"ids = {[3] * 15}", greedy=2, kinds=f'["{kind}"]')
    result = project.gate("-k", "fidelity", shards="L01")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["Golden prompt 'long' of mini has 15 tokens; *"])


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ("ids = [3, 64, 5]", "'alien' of mini has token 64, and *; give ids below that."),
        ('text = "abc"', "'alien' of mini has token 66, and *; the tokenizer is not this model's*"),
    ],
)
def test_tokens_beyond_the_vocabulary(
    project: Project, monkeypatch: pytest.MonkeyPatch, form: str, sentence: str
) -> None:
    from pytest_ane.models.sources.tokenizer import SourceTokenizer

    monkeypatch.setattr(SourceTokenizer, "encode", lambda self, text: [1, 66, 2])
    result = prompted(project, "alien", form).gate("-k", "fidelity or behaviour")
    result.assert_outcomes(failed=5, deselected=8)
    result.stdout.fnmatch_lines([f"Golden prompt {sentence}"])


@pytest.mark.slow
def test_a_prompt_of_one_token_is_compared_where_it_can_be(project: Project) -> None:
    """Its only position is the first, apart from the others: behaviour has nothing to judge."""
    kinds = '["captured", "outlier", "extreme"]'
    result = prompted(project, "bos", "ids = [0]", kinds=kinds).gate("-k", "fidelity", "-rA")
    result.assert_outcomes(passed=4, deselected=9)
    result.stdout.fnmatch_lines(["captured bos T=1 * 1.0000 *"])
    result = project.gate("-k", "behaviour")
    result.assert_outcomes(failed=1, deselected=12)
    result.stdout.fnmatch_lines(["UNPROVEN mini *No golden prompt has a second position*"])
