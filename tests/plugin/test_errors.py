"""Bad input: a failed test or exit 4, with one sentence, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.models.families.llama.test_checkpoint import CONFIG, published
from tests.models.families.llama.tiny import tiny_source
from tests.models.sources.checkpoints import write_checkpoint
from tests.plugin.conftest import Project

WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"


def only_sentence(result: pytest.RunResult, start: str) -> str:
    """The sentence that a failure or an error consists of."""
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lines = result.outlines
    titles = [i for i, line in enumerate(lines) if line.startswith("_") and line.endswith("_")]
    assert titles
    for title in titles:
        following = [line for line in lines[title + 1 :] if line]
        assert start in following[0]
        assert following[1].startswith(("_", "=", "ane: no gate was judged"))
    return next(line for line in lines[titles[0] + 1 :] if line)


@pytest.mark.parametrize("gate", ["placement", "compression", "fidelity", "behaviour"])
def test_a_missing_gguf(project: Project, gate: str) -> None:
    shards = "all" if gate == "behaviour" else "L01"
    result = project.llama(source=Path("absent.gguf")).gate("-k", gate, shards=shards)
    only_sentence(result, "absent.gguf: no such file; ")


OTHER = """
[models.{name}]
family = "llama"
source = {{ path = "{name}.gguf" }}
shards = "L00-L01, head.0-head.1"
max-tokens = 16
"""
CLAMPED = "refused.gguf: its metadata has llama.clamp_anything 64, which family 'llama' does not"


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--co",), ("-n", "2")])
def test_a_refused_model_is_one_error_and_hides_no_other(
    project: Project, options: tuple[str, ...]
) -> None:
    whole = project.workshop.llama.read_bytes()
    refused = whole.replace(b"llama.context_length", b"llama.clamp_anything")
    (project.path / "refused.gguf").write_bytes(refused)
    project.llama("".join(OTHER.format(name=name) for name in ("refused", "absent")))
    result = project.gate("-k", "placement", *options)
    errors = [line.strip("_ ") for line in result.outlines if "ERROR collecting" in line]
    assert errors == ["ERROR collecting refused", "ERROR collecting absent"]
    for sentence in (CLAMPED, "absent.gguf: no such file; check the source in shards.toml."):
        assert sum(sentence in line for line in result.outlines) == 1
    if "--co" in options:
        assert result.ret == pytest.ExitCode.INTERRUPTED
        result.stdout.fnmatch_lines(["*test_placement?mini:L01?*"])
    else:
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.assert_outcomes(passed=4, errors=2, deselected=0 if options else 9)


CHECKPOINT = """
[models.m]
family = "llama"
source = { path = "m" }
shards = "L00-L01"
max-tokens = 8
"""


@pytest.fixture
def checkpoint(project: Project) -> Path:
    """A tiny one, beside a manifest."""
    tensors = tiny_source(layers=2).tensors.items()
    folder = write_checkpoint(
        project.path / "m", {published(n): ("F32", it) for n, it in tensors}, config=CONFIG
    )
    (project.path / "shards.toml").write_text(CHECKPOINT)
    return folder


def test_a_checkpoint_that_is_another_model_is_refused_at_collection(
    project: Project, checkpoint: Path
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"is_causal": False}))
    result = project.gate("--co")
    result.stdout.fnmatch_lines(["*ERROR collecting m*", "*m: config.json has is_causal False, *"])


def test_nan_in_a_weight_is_refused_when_it_is_built(project: Project, checkpoint: Path) -> None:
    (file,) = checkpoint.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][5, 7] = np.nan
    save_file(tensors, file)
    said = f"m/{file.name}: tensor 'model.layers.1.mlp.up_proj.weight' has NaN or infinity, "
    sentence = only_sentence(project.gate("-k", "compression", shards="L01"), said)
    assert "first in row 5; " in sentence
    project.gate("-k", "compression", shards="L00").assert_outcomes(passed=1, deselected=3)


def test_another_error_of_collection_interrupts_as_ever(project: Project) -> None:
    project.path.joinpath("test_own.py").write_text("assert not __name__\n")
    result = project.llama(source=Path("absent.gguf")).gate("-k", "placement")
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_files_that_do_not_exist(project: Project) -> None:
    only_sentence(project.packages(absent="none").gate(), "own:absent: the artifact ")
    result = project.packages(good="absent.mlpackage").gate("-k", "fidelity")
    only_sentence(result, "absent.mlpackage: ")


def test_a_bug_keeps_its_traceback(project: Project) -> None:
    """Only bad input is told in a sentence."""
    project.pytester.makeconftest(
        "import pytest\n@pytest.fixture\ndef ane_evidence():\n    return {}['key']\n"
    )
    result = project.packages(good="none").gate("-k", "compression")
    result.stdout.fnmatch_lines([">*return {}[[]'key'[]]*", "E*KeyError: 'key'"])
    result.stdout.no_fnmatch_line("*pytest_ane/plugin/*")
