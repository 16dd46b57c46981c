"""Models of one's own: the worked example, a family module over a checkpoint, and every failure."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pytest_ane.cli import main
from pytest_ane.mac._replay import Replayer
from pytest_ane.mac._script import Script
from pytest_ane.models.sources import SeededSource, Spread
from tests.forked import Forge
from tests.models.sources.checkpoints import bf16, write_checkpoint
from tests.plugin.conftest import Project
from tests.plugin.test_junit import properties

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model"
SMALL = """
import torch
from pytest_ane.models.families import Conversion, Port

def build(shard):
    with open("calls.txt", "a") as file:
        file.write(shard + "\\n")
    x = Port("x", (1, 16, "T", 1))
    torch.manual_seed(1)
    module = torch.nn.Conv2d(16, 16, 1)
    {change}
    return Conversion(module, (x,), (Port("y", x.shape),){more})
"""
MANIFEST = """
[models.own]
builder = "small_model:build"
shards = "ffn.0"
max-tokens = 4
"""
FAMILY = """
from dataclasses import dataclass
import numpy as np
import torch
from pytest_ane.models.families import Conversion, Port, Wire
from pytest_ane.models.sources import Spread

VERSION = "linear/1"

@dataclass(frozen=True)
class Layout:
    width: int
    sees: str = "itself"

    def inputs(self, hidden, start=0):
        return {"x": hidden.T[None, :, :, None]}

    def output(self, outputs):
        return outputs["y"][0, :, :, 0].T

class Model:
    def __init__(self, source):
        self.source, self.positions, self.missing = source, 8, ()
        self.description = {"width": source.value("width")}

    def _weight(self, shard, dtype=np.float32):
        width = self.description["width"]
        return torch.from_numpy(self.source.tensor(f"{shard}.weight", (width, width), dtype))

    def layout(self, shard):
        return Layout(self.description["width"])

    def embed(self, ids):
        return self.source.rows("embed", ids, self.description["width"])

    def reference(self, shard):
        return lambda hidden: [h @ self._weight(shard).numpy().T for h in hidden]

    def conversion(self, shard):
        x = Port("x", (1, self.description["width"], "T", 1))
        module = torch.nn.Conv2d(x.shape[1], x.shape[1], 1, bias=False).half()
        module.weight.data = self._weight(shard, np.float16)[:, :, None, None]
        return Conversion(module, (x,), (Port("y", x.shape),))

def open_model(source, cut):
    return Model(source)

def layout(description, shard):
    return Layout(description["width"])

def wiring(shards):
    return tuple(Wire(shard) for shard in shards)

def starts_whole(shards):
    return True

def spread(name, shape):
    return Spread(shape[-1] ** -0.5, outliers=0.03)
"""
OF_FAMILY = """
[models.own]
family = "linear_family"
source = {source}
shards = "L00"
max-tokens = 4
"""


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run imports its own project's modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("small_model", "linear_family"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def small(project: Project, change: str = "", more: str = "", manifest: str = MANIFEST) -> Project:
    sys.modules.pop("small_model", None)
    (project.path / "small_model.py").write_text(SMALL.format(change=change, more=more))
    return project.manifest(manifest)


def calls(project: Project) -> int:
    """How often the builder has been asked so far."""
    return len((project.path / "calls.txt").read_text().split())


def complaint(project: Project) -> str:
    result = project.gate("--ane-cache=cache")
    assert result.ret != 0
    return " ".join((result.stdout.str() + result.stderr.str()).split())


@pytest.mark.slow
def test_the_worked_example_as_a_user_runs_it(project: Project, forge: Forge) -> None:
    shutil.copytree(EXAMPLE, project.path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    command = ["pytest", "--ane-manifest=own/shards.toml", "--ane-shards=all", "-m", "gate",
               "--ane-cache=cache"]  # fmt: skip
    done = forge.run(command, project.path)
    result = pytest.RunResult(done.returncode, done.stdout.splitlines(), [], 0)
    result.assert_outcomes(passed=9, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "warned   own:classifier  placement   off the ANE (2 of 2 ops, *",
            "passed   own:classifier  compression *",
            "passed   own:ffn.0       fidelity    mean cosine *(needs*",
            "9 gates: * warned, * passed *",
        ]
    )


@pytest.mark.slow
def test_a_builder_is_asked_again_only_when_something_it_depends_on_changes(
    project: Project,
) -> None:
    (project.path / "weights").mkdir()
    (project.path / "weights" / "w.bin").write_bytes(b"1")
    manifest = MANIFEST + 'depends = ["weights"]\n'
    for change, twice in (("", 2), ("", 2), ("module.bias.data += 1", 4)):
        small(project, change, manifest=manifest).gate("--ane-cache=cache").assert_outcomes(
            passed=3, deselected=1
        )
        assert calls(project) == twice  # Once to build, once for the reference.
    (project.path / "weights" / "w.bin").write_bytes(b"2")
    project.gate("--ane-cache=cache").assert_outcomes(passed=3, deselected=1)
    assert calls(project) == 6


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ("raise ValueError('none for ' + shard)", "", "ValueError: none for ffn.0 (small_model.py"),
        ("return module", "", "gave Conv2d; return a pytest_ane.models.families.Conversion."),
        ("module = build", "", "has function for a module; give a torch.nn.Module."),
        ("return Conversion(module, (), ())", "", "names no inputs or no outputs; give a Port"),
        ("x = Port('x', (1, -16, 'T', 1))", "", "gives 'x' the shape (1, -16, 'T', 1); use sizes"),
        ("x = Port('y', x.shape)", "", "names a port twice among y, y."),
        ("", ", reference=3", "has int for a reference; give a callable or None."),
        ("", ", reference=lambda x: x[:, :8]", "at T = 1 its reference gives [1, 8, 1, 1], and"),
        ("", ", reference=lambda x: 1 / 0", "its float32 reference failed: ZeroDivisionError"),
        ("raise SystemExit(3)", "", "failed: SystemExit: 3 (small_model.py:"),
        ("module.forward = lambda x: x.nothing()", "", "ffn.0 could not be converted: 'Tensor'"),
    ],
)
def test_what_a_builder_can_get_wrong(project: Project, change: str, more: str, said: str) -> None:
    complaints = complaint(small(project, change, more))
    assert "own:ffn.0" in complaints or "Conversion of builder" in complaints
    assert said in complaints


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (MANIFEST.replace(":build", ":make"), "small_model has no function 'make'."),
        (MANIFEST.replace("model:", "model.inner:"), "small_model.inner cannot be imported: Modul"),
        (MANIFEST + 'depends = ["absent.bin"]\n', "which is not there; check the path."),
        (MANIFEST + 'family = "llama"\n', "'family' and a builder exclude each other"),
        (MANIFEST + "source = { seeded = 1 }\n", "'source' and a builder exclude each other"),
        (
            MANIFEST + 'prompts = [{ name = "p", ids = [1] }]\n',
            "'prompts' and a builder exclude each",
        ),
    ],
)
def test_what_a_manifest_can_get_wrong_about_a_builder(
    project: Project, manifest: str, said: str
) -> None:
    assert said in complaint(small(project, manifest=manifest))


def family(project: Project, source: str, text: str = FAMILY) -> Project:
    (project.path / "linear_family.py").write_text(text)
    return project.manifest(OF_FAMILY.format(source=source))


@pytest.mark.slow
def test_a_checkpoint_gives_the_same_shard_as_the_weights_in_memory(project: Project) -> None:
    """A checkpoint of two files with the values of a seed, through a family of one's own."""
    seeded = SeededSource(7, lambda name, shape: Spread(shape[-1] ** -0.5, outliers=0.03))
    weight = ("F16", seeded.tensor("L00.weight", (64, 64), np.float16))
    parts = ({"embed": bf16(np.ones((4, 64)))}, {"L00.weight": weight})
    write_checkpoint(project.path / "weights", *parts, config={"width": 64})
    for source, said in (
        ('{ path = "weights" }', "own:L00"),
        ("{ seeded = 7, config.width = 64 }", "own:L00 synthetic"),
    ):
        result = family(project, source).gate("--ane-cache=cache")
        result.assert_outcomes(passed=3, deselected=1)
        result.stdout.fnmatch_lines([f"passed   {said}  fidelity    *cosine 1.0000*"])
    found = sorted((project.path / "cache" / "artifacts").rglob("weight.bin"))
    assert len(found) == 2
    assert found[0].read_bytes() == found[1].read_bytes()
    assert weight[1].tobytes() in found[0].read_bytes()


# Who wrote the reference: without a second author the row says so, and a policy may ask for one.

INDEPENDENT = "\n[models.own.policy.fidelity]\nrequire-independent = true\n"
SAME = "reference: same module"
ASKS = "*The reference is the same module, and require-independent asks for one by another author*"


@pytest.fixture
def _wide(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen on which rows are whole."""
    monkeypatch.setenv("COLUMNS", "300")


def fidelity(project: Project, *options: str) -> pytest.RunResult:
    return project.gate("-k", "fidelity", "--ane-cache=cache", *options)


@pytest.mark.usefixtures("_wide")
def test_a_builder_whose_module_is_its_own_reference(project: Project) -> None:
    result = fidelity(small(project), "--junitxml=out.xml")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines([f"passed   own:ffn.0  fidelity    mean cosine *, {SAME}"])
    facts = properties(project.path / "out.xml")["test_fidelity[own:ffn.0]"]
    assert facts["ane.reference"] == "same module"
    result = fidelity(small(project, manifest=MANIFEST + INDEPENDENT))
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*own:ffn.0: fidelity unproven", ASKS])
    # What is wrong is not merely unproven.
    strict = MANIFEST + INDEPENDENT + "min-cosine = 1.0\nmax-algebra = 0.0\nmax-rounding = 0.0\n"
    result = fidelity(small(project, manifest=strict))
    result.stdout.fnmatch_lines(["*own:ffn.0: fidelity failed", ASKS])


def test_what_one_hand_got_wrong_only_a_second_author_sees(project: Project) -> None:
    relu = "module = torch.nn.Sequential(module, torch.nn.ReLU())"
    silu = ", reference=lambda x: torch.nn.functional.silu(module[0](x))"
    fidelity(small(project, relu)).assert_outcomes(passed=1, deselected=3)
    required = MANIFEST + INDEPENDENT
    result = fidelity(small(project, relu, silu, required))
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*own:ffn.0: fidelity failed", "*wrong function: *"])
    # Of another length: Python takes code of the same second and size for what it has compiled.
    right = "module = torch.nn.Sequential(module, torch.nn.SiLU(inplace=False))"
    result = fidelity(small(project, right, silu, required))
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.no_fnmatch_line(f"*{SAME}*")


def test_a_family_of_one_s_own_tells_who_wrote_its_reference(project: Project) -> None:
    tells = "    def independent(self, shard):\n        return True\n\n    def conversion"
    seeded = "{ seeded = 7, config.width = 32 }"
    own = FAMILY.replace("    def conversion", tells)
    for text, outcome in ((FAMILY, "failed"), (own, "passed")):
        sys.modules.pop("linear_family", None)
        family(project, seeded, text)
        project.manifest(OF_FAMILY.format(source=seeded) + INDEPENDENT)
        result = fidelity(project)
        result.assert_outcomes(**{outcome: 1, "deselected": 3})
        if outcome == "failed":
            result.stdout.fnmatch_lines(["*own:L00: fidelity unproven*", ASKS])


def test_golden_tensors_of_the_module_itself_are_no_second_author(project: Project) -> None:
    file, cache = project.path / "ffn.safetensors", ["--ane-cache", str(project.path / "cache")]
    small(project)
    assert main(["golden", "record", "own:ffn.0", "--out", str(file), *cache]) == 0
    held = MANIFEST + f'[models.own.shard."ffn.0"]\nreference = "{file.name}"\n'
    result = fidelity(small(project, manifest=held + INDEPENDENT))
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines([ASKS])
    # Of a file from elsewhere nobody says so: it is the user's word.
    save_file(load_file(file), file)
    fidelity(project).assert_outcomes(passed=1, deselected=3)


@pytest.mark.usefixtures("_wide")
def test_evidence_says_who_wrote_the_reference(project: Project, genuine: None) -> None:
    device = MANIFEST + '\n[models.own.policy.fidelity]\nrequire = "device"\n'
    with Replayer(Script()):
        fidelity(small(project, manifest=device), "--ane-backend=coreml", "--ane-record")
    for more, outcome in (("", "passed"), ("require-independent = true\n", "failed")):
        result = fidelity(small(project, manifest=device + more), "--ane-backend=cpu")
        result.assert_outcomes(**{outcome: 1, "deselected": 3})
        says = SAME if outcome == "passed" else "The reference is the same module"
        result.stdout.fnmatch_lines([f"*own:ffn.0 * fidelity *{says}*"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FAMILY.replace("def spread", "def spreads"), "has no function spread(); a family has"),
        (FAMILY.replace("VERSION =", "EDITION ="), "has no VERSION, a text that every cache key"),
        ("import nothing_such", "linear_family cannot be imported: ModuleNotFoundError: No module"),
    ],
)
def test_what_a_family_can_get_wrong(project: Project, text: str, said: str) -> None:
    told = complaint(family(project, "{ seeded = 7, config.width = 32 }", text))
    assert "Family 'linear_family'" in told
    assert said in told
