"""Packages of several functions: each is gated under its own name, and none stands for another."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.mac.testing import DeviceRule, Replayer, Script
from tests import multifunction
from tests.plugin.conftest import Project, Workshop

pytestmark = pytest.mark.slow

CORE_ML = "--ane-backend=coreml"
BACKENDS = ["--ane-backend=cpu", CORE_ML]
REFERENCE = "reference"
TABLE = '[models.own.shard.decoder]\nartifact = "{artifact}"\nreference = "{reference}"\n'


@pytest.fixture(scope="session")
def packages(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = multifunction.make(tmp_path_factory.mktemp("functions"))
    twins = {f"{name}.mlmodelc": multifunction.compiled(path) for name, path in made.items()}
    return made | twins


class Functions:
    """A project with one shard `decoder`, and what its gates say of each function."""

    def __init__(self, project: Project, packages: dict[str, Path]) -> None:
        self.project, self.packages = project, packages

    def manifest(self, artifact: str, reference: str = REFERENCE, more: str = "") -> Functions:
        held = self.packages.get(reference, reference)
        table = TABLE.format(artifact=self.packages[artifact], reference=held)
        self.project.manifest(table + more)
        return self

    def gate(self, *options: str, shards: str = "all") -> pytest.RunResult:
        if CORE_ML not in options:
            return self.project.gate("-v", *options, shards=shards)
        with Replayer(Script()):
            return self.project.gate("-v", *options, shards=shards)


@pytest.fixture
def functions(project: Project, packages: dict[str, Path]) -> Functions:
    return Functions(project, packages)


def red(result: pytest.RunResult) -> list[str]:
    """What failed: subject and gate."""
    marks = ("FAILED   own:", "UNPROVEN own:")
    rows = (line.split() for line in result.outlines if line.startswith(marks))
    return sorted({f"{subject} {gate}" for _, subject, gate, *_ in rows})


@pytest.mark.drawn
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["", ".mlmodelc"])
@pytest.mark.parametrize(
    ("artifact", "wrong"),
    [
        ("right", []),
        ("other", ["own:decoder[verify4] fidelity"]),
        ("swapped", ["own:decoder[decode] fidelity", "own:decoder[verify4] fidelity"]),
    ],
)
def test_each_function_has_a_verdict(
    functions: Functions, backend: str, form: str, artifact: str, wrong: list[str]
) -> None:
    if form and backend == CORE_ML:  # No package of its own can be made of a compiled model.
        wrong = [*wrong, "own:decoder[verify4] placement"]
    result = functions.manifest(f"{artifact}{form}").gate(backend)
    assert red(result) == wrong
    result.assert_outcomes(passed=6 - len(wrong), failed=len(wrong), deselected=1)


def test_placement_is_of_the_function(functions: Functions) -> None:
    assert red(functions.manifest("ineligible").gate("-k", "placement")) == [
        "own:decoder[verify4] placement"
    ]


def test_a_plan_is_of_the_function(functions: Functions) -> None:
    functions.manifest("right")
    """That of `verify4` is of its own package, where it is called `main`."""
    with Replayer(Script(devices=(DeviceRule(preferred="CPU", function="main", op="conv"),))):
        result = functions.project.gate(CORE_ML, "-k", "placement")
    assert red(result) == ["own:decoder[verify4] placement"]
    result.stdout.fnmatch_lines(
        ["  - conv `projection_cast_fp16` runs on the CPU instead of the ANE"]
    )


@pytest.mark.parametrize(
    ("reference", "passed", "says"),
    [
        ("single", 1, "ERROR    own:decoder[[]decode]   fidelity    verify.ml*: input 'x'*"),
        ("single.mlmodelc", 1, "ERROR    own:decoder[[]decode]   fidelity    verify.ml*"),
        ("foreign", 0, "*has no function 'verify4' to compare with; it has first, second*"),
    ],
)
def test_a_reference_of_one_function_is_every_functions(
    functions: Functions, reference: str, passed: int, says: str
) -> None:
    """So another interface shows, where it has one; of several functions it must have this one."""
    result = functions.manifest("right", reference).gate("-k", "fidelity")
    result.assert_outcomes(passed=passed, failed=2 - passed, deselected=5)
    result.stdout.fnmatch_lines([says])


def test_the_uncompressed_function_makes_the_error_budget(functions: Functions) -> None:
    functions.manifest("right", more=f'uncompressed = "{functions.packages[REFERENCE]}"\n')
    result = functions.gate("-k", "fidelity or compression")
    result.assert_outcomes(passed=4, deselected=3)
    text = result.stdout.str()
    assert "cannot be told apart" not in text
    assert "lowest SNR" in text


def test_a_table_may_choose_one_and_the_verdict_says_what_it_leaves_out(
    functions: Functions,
) -> None:
    result = functions.manifest("other", more='function = "decode"\n').gate("-rP")
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "function decode   run",
            "function verify4  no shard of the manifest is this function*",
            "passed   own:decoder  fidelity *",
        ]
    )


def test_a_function_that_the_package_does_not_have(functions: Functions) -> None:
    result = functions.manifest("right", more='function = "verify5"\n').gate()
    result.assert_outcomes(failed=3, deselected=1)
    result.stdout.fnmatch_lines(["*has no function 'verify5'; it has decode, verify4.*"])


def test_an_input_table_is_for_the_functions_that_have_the_input(functions: Functions) -> None:
    inputs = '[models.own.shard."*".inputs.{}]\nkind = "constant"\nfiles = "{}"\n'
    np.save(functions.project.path / "h.npy", np.ones((1, 8, 1, 4), np.float16))
    for name, failed in (("h", 0), ("z", 2)):
        table = inputs.format(name, "h.npy")
        result = functions.manifest("ports", "near-ports", table).gate("-k", "fidelity")
        result.assert_outcomes(passed=2 - failed, failed=failed, deselected=5)
    result.stdout.fnmatch_lines(["*has no input 'z', which the manifest names; there are: h, x.*"])


def test_an_id_of_the_report_can_be_pasted(functions: Functions) -> None:
    functions.manifest("other")
    node = "gates/test_fidelity.py::test_fidelity[own:decoder[verify4]]"
    result = functions.project.run(node)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"FAILED {node.replace('[', '[[]')}*"])
    assert red(result) == ["own:decoder[verify4] fidelity"]


def test_without_a_manifest(functions: Functions) -> None:
    package = functions.packages["right"]
    result = functions.project.run(f"--ane-package={package}", "-m", "gate", "-v")
    result.assert_outcomes(passed=6, deselected=1)
    result.stdout.fnmatch_lines(["passed   package:multi-right[[]verify4]  fidelity *"])


def test_all_functions_of_a_canary_must_pass(functions: Functions) -> None:
    head = TABLE.format(artifact=functions.packages["single"], reference="none")
    functions.manifest("other", more=head.replace("decoder", "head"))
    functions.project.head('[models.own]\ncanary = "decoder"\n')
    result = functions.gate("-n0")
    result.assert_outcomes(passed=5, failed=1, errors=3, deselected=1)
    result.stdout.fnmatch_lines(["*not run: canary decoder[[]verify4] failed fidelity*"])


REQUIRED = '[models.own.policy.fidelity]\nrequire = "device"\n'


@pytest.fixture
def recorded(functions: Functions, genuine: None) -> Functions:
    """Evidence of both functions, as a Mac recorded it."""
    functions.manifest("right", more=REQUIRED)
    functions.gate(CORE_ML, "--ane-record").assert_outcomes(passed=6, deselected=1)
    return functions


def test_evidence_is_kept_by_function(recorded: Functions) -> None:
    folder = recorded.project.path / "evidence" / "own"
    assert len(list(folder.iterdir())) == 6
    assert (folder / "decoder[verify4].fidelity.json").is_file()
    result = recorded.gate("--ane-backend=cpu")
    result.assert_outcomes(passed=6, deselected=1)
    result.stdout.fnmatch_lines(["evidence: 4 verified *"])


def test_evidence_of_one_function_is_none_of_another(recorded: Functions) -> None:
    folder = recorded.project.path / "evidence" / "own"
    (folder / "decoder[decode].fidelity.json").unlink()
    other = folder / "decoder[verify4].fidelity.json"
    shutil.copy(other, folder / "decoder[decode].fidelity.json")
    result = recorded.gate("--ane-backend=cpu", "-k", "fidelity")
    result.assert_outcomes(passed=1, failed=1, deselected=5)
    assert red(result) == ["own:decoder[decode] fidelity"]


OWN_GATE = """
import numpy as np
import pytest
pytestmark = pytest.mark.gate
def test_length(ane_shard, ane_artifact, ane_backend, ane_program):
    runner = ane_backend.load(ane_artifact.path)
    length = {"decode": 1, "verify4": 4}[ane_shard.function]
    assert [f.shape for f in runner.model.inputs] == [(1, 8, 1, length)]
    assert list(ane_program.program.functions) == [ane_shard.function]
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gate_of_ones_own_runs_the_shards_function(functions: Functions, backend: str) -> None:
    functions.manifest("right").project.pytester.makepyfile(test_own=OWN_GATE)
    functions.gate(backend, "test_own.py").assert_outcomes(passed=2)
