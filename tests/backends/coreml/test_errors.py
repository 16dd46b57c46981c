"""Known error texts; each one of them in a log: `tests/gates/placement/plans/test_errors.py`."""

from __future__ import annotations

import pytest

from pytest_ane.backends.coreml.errors import KNOWN_ERRORS, error_text, explain, is_stale, recognise

CODE_14 = (
    "Failed to build the model execution plan using a model architecture file '/a/model.mil' with "
    "error code: -14."
)
PUBLIC = (
    # CoreMLPipelines #4
    '{\n    NSLocalizedDescription = "Failed to build the model execution plan using a model '
    "architecture file '{path}/model.mil' with error code: -14.\";\n}",
    # ml-stable-diffusion #5
    '{\n    NSLocalizedDescription = "at {path}/model.mil:11:258: Error parsing MIL model: at '
    '{path}/model.mil:11:258: Could not open {path}/weights/weight.bin";\n    NSUnderlyingError = '
    '"Error Domain=com.apple.CoreML Code=110 \\"(null)\\"";\n}',
    # coremltools #2079
    "Caught an unknown exception!",
    # pytorch #109444
    '{\n    NSLocalizedDescription = "nil value for URL";\n}',
)
"""Texts of Core ML's errors in Python as public threads have them; `{path}` is the model's."""


def test_only_code_14_may_be_a_stale_model() -> None:
    assert [known.parts[-1] for known in KNOWN_ERRORS if known.stale] == ["error code: -14"]
    for code, stale in (("-14", True), ("14", True), ("-1", False), ("141", False)):
        assert is_stale(RuntimeError(CODE_14.replace("-14", code))) == stale


@pytest.mark.parametrize(
    ("status", "text", "meaning"),
    [
        ("0x12", "statusType=0x3: Program Inference overflow", "A value overflowed on the ANE"),
        ("0x1d", "Program Inference error", "A prediction failed on the ANE"),
        ("0x2", "Program Inference error", "A prediction failed on the ANE"),
    ],
)
def test_a_failure_at_run_time_is_known_by_any_status(status: str, text: str, meaning: str) -> None:
    known = recognise(f"ANEProgramProcessRequestDirect() Failed with status={status} : {text}")
    assert known is not None
    assert known.meaning == f"{meaning} at run time"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain words.", "plain words"),
        ('{\n    NSLocalizedDescription = "It \\"failed\\" here.";\n}', 'It "failed" here'),
        ("{NSLocalizedDescription = Failed; NSUnderlyingError = x}", "Failed"),
        ("two\n  lines \x1b[31m", r"two lines \x1b[31m"),
        ("x" * 1000, f"{'x' * 198}...{'x' * 198}"),
        ("", ""),
        ("{\n}", ""),
        (
            '{\n    NSLocalizedDescription = "The file couldn\\U2019t be opened.";\n}',
            "The file couldn\u2019t be opened",
        ),
        (
            '{\n    NSUnderlyingError = "Error Domain=com.apple.CoreML Code=110 \\"(null)\\"";\n}',
            'Error Domain=com.apple.CoreML Code=110 "(null)"',
        ),
        ("{ }", ""),
        ("(null)", ""),
        (r'{ NSLocalizedDescription = "One.\nTwo, at C:\\a.\n"; }', r"One. Two, at C:\a"),
        (r'{ NSLocalizedDescription = "No \Ud83d\Ude00.mlmodelc"; }', "No \U0001f600.mlmodelc"),
        (r'{ NSLocalizedDescription = "cut \Ud83d"; }', "cut \ufffd"),
        ('{ NSDebugDescription = "Not in the correct format."; }', "Not in the correct format"),
        ("{ NSLocalizedFailureReason = Damaged; }", "Damaged"),
        ('{ NSLocalizedDescription = ""; NSUnderlyingError = "Code=6"; }', "Code=6"),
        (r"plain C:\new", r"plain C:\new"),
    ],
)
def test_what_core_ml_says_is_one_line(text: str, expected: str) -> None:
    assert error_text(RuntimeError(text)) == expected


def test_what_is_explained_spans_lines_and_what_is_not_known_stands_alone() -> None:
    wrapped = RuntimeError('{\n NSLocalizedDescription = "' + CODE_14.replace(" plan", "\n plan"))
    assert "(Core ML built no plan (-14)" in explain(wrapped)
    assert explain(RuntimeError("never seen before.")) == "never seen before"
    assert explain(RuntimeError()) == "RuntimeError, without a reason"
    assert explain(RuntimeError("{\n}")) == "RuntimeError, without a reason"


@pytest.mark.parametrize("text", PUBLIC)
def test_texts_as_recorded_publicly_are_one_sentence_each(text: str) -> None:
    explained = explain(RuntimeError(text.replace("{path}", "/a.mlmodelc")))
    assert not set(explained) & set("{}\n\\")
    assert explained.endswith(")"), "what it means, and what to do"
