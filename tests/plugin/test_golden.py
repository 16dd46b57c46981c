"""`reference = "golden.safetensors"`: recorded by the command line, held against in a run."""

from __future__ import annotations

import pytest

from pytest_ane.cli import main
from tests.plugin.conftest import Project

HELD = '\n[models.mini.shard."{}"]\nreference = "golden/{}.safetensors"\n'


def record(project: Project, *arguments: object) -> int:
    """Run the command in the project's folder, with the workshop's cache."""
    cache = ["--ane-cache", str(project.workshop.cache)]
    return main(["golden", "record", *map(str, arguments), *cache])


def fidelity(project: Project, *options: str, shards: str = "all") -> pytest.RunResult:
    return project.gate("-k", "fidelity", "-rA", *options, shards=shards)


def test_a_family_s_shard(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.llama()
    assert record(project, "L01", "--out", "golden/L01.safetensors") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("golden/L01.safetensors: 8 probes, ")
    assert said[1] == "recorded from the float32 module of mini:L01"
    project.llama(HELD.format("L01", "L01"))
    result = fidelity(project, shards="L01")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gaussian T=* #0 *", "captured counting T=5 *"])


def test_golden_tensors_of_another_shard_are_red(project: Project) -> None:
    project.llama()
    assert record(project, "L00", "--out", "golden/L00.safetensors") == 0
    result = fidelity(project.llama(HELD.format("L01", "L00")), shards="L01")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*live probes are below min-cosine = 0.97: *"])
    fidelity(project.llama(HELD.format("head.0", "L00")), shards="head.0").assert_outcomes(failed=1)


def test_a_package(project: Project) -> None:
    full, other = project.workshop.packages["float32"], project.workshop.packages["other"]
    assert record(project, full, "--out", "full.safetensors") == 0
    project.packages(good="full.safetensors", other="full.safetensors")
    result = fidelity(project)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["passed   own:good * cosine 1.0000 *"])
    result.stdout.fnmatch_lines(["FAILED   own:other *"])
    assert record(project, "own:other", "--package", other, "--out", "other.safetensors") == 0
    result = fidelity(project.packages(other="other.safetensors"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*other.safetensors: was recorded from own:other itself, so *"])


def test_a_package_of_unknown_making_has_no_module(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.packages(good="none")
    assert record(project, "good", "--out", "a.safetensors") == 1
    assert "own:good: has no float32 module; name a package to run" in capsys.readouterr().err


# Golden prompts that do not fit: too long, one token alone, tokens the model does not have.

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
        (
            'text = "alien"',
            "'alien' of mini has token 66, and *; the tokenizer is not this model's*",
        ),
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
