"""Every option is one row of a table: its help, its ini twin, and what is refused of it."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pytest_ane.mac.testing import Mac, Replayer, Script
from pytest_ane.plugin._options import OPTIONS, Option
from tests.mlprogram.executor.hungry import endless, fill
from tests.plugin.conftest import Project, refused

TIME, SIZE = "must be a number of seconds or a time *", "must be a number of bytes or a size *"
COSINE = "give a number above 0, up to 1, or one for each of *"
BUILDS = "give a number from 1 to 1000."


@pytest.fixture
def good(project: Project) -> Project:
    return project.packages(good="none")


def test_every_option_and_its_twin_are_explained(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--help").stdout.str()
    for option in OPTIONS:
        assert f"  {option.flag}" in text
        assert (f"  {option.name} (string):" in text) is option.has_twin


def test_the_manifest_is_the_one_where_pytest_was_called(
    good: Project, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a folder with a project of its own, as of a model that `init` has just cut."""
    (good.path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    inner = good.path / "inner"
    inner.mkdir()
    text = (good.path / "shards.toml").read_text()
    (inner / "shards.toml").write_text(text.replace("good", "other"))
    monkeypatch.chdir(inner)
    result = pytester.runpytest_inprocess("--ane-shards=good")
    result.stderr.fnmatch_lines(["*other*"])


NEEDS_VALUES = [o for o in OPTIONS if o.metavar and o.name != "ane_cluster_timeout"]


@pytest.mark.drawn
@pytest.mark.parametrize("option", NEEDS_VALUES, ids=lambda option: option.name)
def test_an_empty_value_is_refused(good: Project, option: Option) -> None:
    """As from an unset variable in a script."""
    given = [f"{option.flag}=", "--ane-backend=coreml"]
    if option.name == "ane_package":
        refused(good.run(*given), "--ane-package is empty; give a value or leave it out.")
        return
    with Replayer(Script(Mac(compiler=""))):
        refused(good.gate(*given), f"{option.flag} is empty; *")


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        *(("ane_min_cosine", value, COSINE) for value in (
            "abc", "nan", "1.5", "-1", "0", "inf", ":0.9", "good:", "0.9,", "a:b")),
        *(("ane_builds", value, BUILDS) for value in ("0", "-1", "two", "1001", "1.5", "²")),
        *(("ane_arithmetic", value, "*.") for value in ("fp16", "h13", "typed,M2")),
        *(("ane_blame", value, "give 'always', 'failed' or 'never'.") for value in (
            "yes", "Always")),
        ("ane_memory", "much", SIZE),
        ("ane_time", "soon", TIME),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_sentence(good: Project, name: str, value: str, says: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    refused(good.gate(f"{flag}={value}"), f"{flag}={value}: {says}")
    good.pytester.makeini(f"[pytest]\n{name} = {value}\n")
    refused(good.gate(), f"{name}={value}: {says}")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ane_unproven", "yes", "give 'fail' or 'allow'."),
        ("ane_backend", "gpu", "give 'auto', 'cpu' or 'coreml'."),
        ("ane_compute_units", "ANE", "give 'ALL', 'CPU_AND_GPU', *"),
    ],
)
def test_a_value_that_is_no_choice(good: Project, name: str, value: str, says: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    result = good.gate(f"{flag}={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*: argument {flag}: invalid choice: {value!r} *"])
    good.pytester.makeini(f"[pytest]\n{name} = {value}\n")
    refused(good.gate(), f"{name}={value}: {says}")


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("name", "twin", "shown", "option", "shown_then"),
    [
        ("ane_unproven", "allow", "unproven allowed", "fail", "unproven fails"),
        ("ane_min_cosine", "0.1", "min-cosine 0.1 for all", "0.99", "min-cosine 0.99 for all"),
        ("ane_backend", "coreml", "backend coreml", "cpu", "backend cpu · placement by forecast"),
        ("ane_compute_units", "ALL", "ALL", "CPU_ONLY", "CPU_ONLY"),
        ("ane_cache", "kept/here", "cache *kept/here", "other", "cache *other"),
        ("ane_store", "kept", "store */kept", "moved", "store */moved"),
    ],
)
def test_the_command_line_wins_over_the_ini_file(
    good: Project, name: str, twin: str, shown: str, option: str, shown_then: str
) -> None:
    good.pytester.makeini(f"[pytest]\n{name} = {twin}\n")
    run = ["--ane-shards=all", "--co"]
    run += ["--ane-backend=coreml"] if name == "ane_compute_units" else []
    run += [] if name == "ane_cache" else [f"--ane-cache={good.workshop.cache}"]
    flag = f"--{name.replace('_', '-')}"
    for given, says in (((), shown), ((f"{flag}={option}",), shown_then)):
        with Replayer(Script(Mac(compiler=""))):
            result = good.pytester.runpytest_inprocess(*run, *given)
        result.stdout.fnmatch_lines([f"ane: * · {says}*"])


# `--ane-unproven` and its ini twin: what becomes of a gate that could compare nothing.

ALLOWED = '[models.own.policy]\nunproven = "allow"\n'
CLAIMED = '[models.own.compression]\nmethod = "palettize"\nnbits = 4\n'
"""Of a package without weights."""


@pytest.mark.parametrize(
    ("options", "more", "passed", "header"),
    [
        ((), "", False, "ane: *"),
        ((), ALLOWED, True, "ane: *"),
        (("--ane-unproven=allow",), "", True, "ane: *unproven allowed*"),
        (("--ane-unproven=fail",), ALLOWED, False, "ane: *unproven fails*"),
    ],
)
def test_unproven_fails_unless_something_else_is_said(
    project: Project, options: tuple[str, ...], more: str, passed: bool, header: str
) -> None:
    """Allowed it passes, but is never called passed."""
    result = project.packages(CLAIMED + more, weightless="none").gate("-k", "compression", *options)
    result.assert_outcomes(passed=int(passed), failed=int(not passed), deselected=3)
    row = "unproven" if passed else "UNPROVEN"
    result.stdout.fnmatch_lines(
        [header, f"{row} own:weightless *compression *", "1 gate: 1 unproven"]
    )


@pytest.mark.parametrize("strict", [True, False])
def test_a_warning_is_red_where_that_is_asked_for(project: Project, *, strict: bool) -> None:
    """A convolution that rules allow and costs keep on the CPU."""
    options = ["--ane-warnings=error"] if strict else []
    result = project.packages(good="none").gate(*options)
    result.assert_outcomes(passed=3 - strict, failed=int(strict), deselected=1)
    word, says = ("FAILED  ", "It is predicted off") if strict else ("warned  ", "off")
    result.stdout.fnmatch_lines(
        [f"{word} own:good  placement   {says} the ANE*",
         "3 gates: 1 failed, 2 passed *" if strict else "3 gates: 1 warned, 2 passed *"]
    )  # fmt: skip


def test_allowing_unproven_allows_no_failure(project: Project) -> None:
    result = project.packages(nan="none").gate("-k", "fidelity", "--ane-unproven=allow")
    result.assert_outcomes(failed=1, deselected=3)


# `--ane-memory` and `--ane-time`: a program that takes too much fails its gate with a sentence.


@pytest.mark.parametrize("how", ["option", "ini"])
def test_a_gate_refuses_what_takes_too_much_memory(
    project: Project, tmp_path: Path, how: str
) -> None:
    package = fill().save(tmp_path)
    options = ["--ane-memory=8 GB"] if how == "option" else ["-o", "ane_memory=8 GB"]
    result = project.run(f"--ane-package={package}", "-m", "gate", "-k", "fidelity", *options)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*over the budget of 8 GB; raise --ane-memory."])


def test_a_gate_ends_what_never_ends(project: Project, tmp_path: Path) -> None:
    package = endless().save(tmp_path)
    result = project.run(
        f"--ane-package={package}", "-m", "gate", "-k", "fidelity", "--ane-time=0.2 s"
    )
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*still running after 0.2 s*raise --ane-time."])


# `--ane-min-cosine` and its ini twin override fidelity policies.


OUTPUTS = "[models.own.policy.fidelity]\nmin-cosine = 0.1\noutputs.projection.min-cosine = 1\n"


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("reference", "policy", "value", "passed"),
    [
        ("other", "", "", False),
        ("other", "", "0.1", False),  # It loosens nothing but the cosine.
        ("float32", "", "", True),
        ("float32", "", "1", False),
        ("float32", "", "0.99,good:1", False),
        ("float32", "", "good:1,0.99", True),  # The last term that names a shard holds.
        ("float32", "", "g*:1", False),
        ("float32", OUTPUTS, "", False),
        ("float32", OUTPUTS, "0.9", True),
    ],
)
def test_thresholds_in_place_of_the_policys(
    project: Project, reference: str, policy: str, value: str, passed: bool
) -> None:
    options = (f"--ane-min-cosine={value}",) if value else ()
    result = project.packages(policy, good=reference).gate("-k", "fidelity", *options)
    result.assert_outcomes(passed=int(passed), failed=int(not passed), deselected=3)
    result.stdout.fnmatch_lines([f"ane: all · *min-cosine {value}*" if value else "ane: all · *"])


# `--ane-compute-units` and its ini twin: where Core ML may run a model.

FIDELITY = ("-k", "fidelity")
CORE_ML = (*FIDELITY, "--ane-backend=coreml")


@pytest.fixture
def on_a_mac(project: Project) -> Iterator[Project]:
    with Replayer(Script(Mac(compiler=""))):
        yield project.packages(good="none")


def test_the_option_reaches_core_ml(on_a_mac: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    import coremltools

    asked = []
    load = coremltools.models.CompiledMLModel

    def noted(path: str, units: coremltools.ComputeUnit, function: str | None) -> object:
        asked.append(units.name)
        return load(path, units, function)

    monkeypatch.setattr(coremltools.models, "CompiledMLModel", noted)
    on_a_mac.gate(*CORE_ML).stdout.fnmatch_lines(["ane: * · CPU_AND_NE · *"])
    on_a_mac.gate(*CORE_ML, "--ane-compute-units=CPU_ONLY").stdout.fnmatch_lines(
        ["ane: * · CPU_ONLY *"]
    )
    assert list(dict.fromkeys(asked)) == ["CPU_AND_NE", "CPU_ONLY"]


def test_beside_cpu_it_is_a_usage_error(on_a_mac: Project) -> None:
    refused(
        on_a_mac.gate(*FIDELITY, "--ane-backend=cpu", "--ane-compute-units=ALL"),
        "--ane-compute-units=ALL is for --ane-backend=coreml; leave it out with cpu.",
    )


# `--ane-manifest` and its ini twin.


@pytest.fixture
def elsewhere(project: Project) -> Project:
    """A manifest of another name in another folder."""
    (project.path / "models").mkdir()
    good = project.workshop.packages["good"]
    text = f'[models.own.shard.good]\nartifact = "{good}"\nreference = "none"\n'
    return project.manifest(text, "models/mine.toml")


def test_the_ini_value_is_relative_to_the_ini_file(
    elsewhere: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.pytester.makeini("[pytest]\nane_manifest = models/mine.toml\n")
    monkeypatch.chdir(elsewhere.path / "models")
    elsewhere.gate().assert_outcomes(passed=3, deselected=1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "shards.toml does not exist; run 'pytest-ane init' to write one, *"),
        ("nbits = = 8", "*shards.toml*: not valid TOML*"),
        ("[models.m]\nfamly = 'llama'", "shards.toml:2: *did you mean 'family'?*"),
        ("", "*shards.toml*models*"),
    ],
)
def test_a_wrong_manifest_is_a_usage_error(
    project: Project, text: str | None, sentence: str
) -> None:
    if text is not None:
        project.manifest(text)
    refused(project.gate(), sentence)


# `--ane-cluster`: what it cannot be combined with, and that Dask is not imported without it.

CLUSTER = "--ane-cluster=tcp://127.0.0.1:9"


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-n", "2"), "*--ane-cluster and -n: *leave -n out, or say --ane-cluster=none."),
        (("--ane-backend=coreml",), "*leave --ane-backend=coreml out, *"),
        (("--ane-record",), "*leave --ane-record out, *"),
        (("--ane-cluster-timeout=soon",), "*--ane-cluster-timeout=soon: *"),
        (("--ane-cluster=nonsense",), "*nonsense is no scheduler's address; give one such as *"),
        (("--ane-cluster=tcp://127.0.0.1",), "*tcp://127.0.0.1 is no scheduler's address; *"),
        ((), "*No scheduler answers at tcp://127.0.0.1:9 (*); start one with: dask scheduler"),
    ],
)
def test_what_is_refused(project: Project, options: tuple[str, ...], says: str) -> None:
    project.packages(good="none")
    limit = () if options else ("--ane-cluster-timeout=1 s",)
    result = project.gate(CLUSTER, *options, *limit)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stdout.str() + result.stderr.str()
    assert any(fnmatch(line, says) for line in text.splitlines()), text


def test_none_is_no_cluster_whatever_the_manifest_says(project: Project) -> None:
    project.packages('[run]\ncluster = "tcp://127.0.0.1:9"\nstore = "s4://x"\n', good="none")
    result = project.gate("--ane-cluster=none", "--ane-store=none", "-k", "compression")
    result.assert_outcomes(passed=1, deselected=3)


def test_benchmarks_time_this_machine(project: Project) -> None:
    project.packages(good="none")
    result = project.run("--ane-shards=all", "-m", "bench", CLUSTER, "--ane-cluster-timeout=1 s")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stdout.str() + result.stderr.str()
    assert "benchmarks time the machine that pytest runs on" in text
