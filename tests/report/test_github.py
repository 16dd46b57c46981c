"""The job summary and the annotations of GitHub Actions."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pytest_ane.report.github import commands, markdown, summary
from pytest_ane.report.run import Row

HEADER = "ane: all · shards 2 of 2 · backend cpu · placement by forecast · seed 7"
ROWS = [
    Row("fidelity", "m:L00", "passed", "cosine min 0.99"),
    Row("fidelity", "m:L01", "failed", "cosine min 0.5", reasons=("Too low.", "And NaN.")),
    Row("placement", "m:L00", "unproven", "no evidence", reasons=("No evidence: record it.",)),
    Row("compression", "m:L00", "passed", "warning: 1 weight", warned=True),
    Row("compression", "m:L01", "unproven", "0 weights", allowed=True, reasons=("Nothing.",)),
    Row("placement", "m:L01", "error", "m:L01: no such file", reasons=("m:L01: no such file",)),
]
SUMMARY = """\
## ane gates: 1 error, 1 failed, 2 unproven, 1 warned, 1 passed

`ane: all · shards 2 of 2 · backend cpu · placement by forecast · seed 7`

### error (1)

- **m:L01** placement: m:L01: no such file

### failed (1)

- **m:L01** fidelity: cosine min 0.5
  - Too low.
  - And NaN.

### unproven (2)

- **m:L00** placement: no evidence
  - No evidence: record it.
- **m:L01** compression, allowed by the policy: 0 weights
  - Nothing.

### warned (1)

- **m:L00** compression: warning: 1 weight

<details><summary>passed (1)</summary>

| | gate | |
|---|---|---|
| m:L00 | fidelity | cosine min 0.99 |

</details>
"""
GITHUB = MarkdownIt("commonmark").enable("table")


def failed(count: int, **more: object) -> list[Row]:
    return [Row("fidelity", f"m:L{i:03}", "failed", "low", reasons=("Low.",)) for i in range(count)]


def test_worst_first_with_reasons_and_what_passed_folded_away() -> None:
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", summary(ROWS, HEADER)) == SUMMARY
    assert summary([], HEADER).startswith("## ane gates: none came to a verdict\n")


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script> & </details>",
        "| a | b |",
        "[click](https://example.org) www.example.org ![x](y)",
        "**bold** _it_ `code` ~~no~~ $x$ \\ # 1. - +",
        "layers.0.attn_q:weight@v",
        "&lt;b&gt; &#60;",
        "\x1b[31mred\x00",
        "two\nlines\r\n- of text",
    ],
)
def test_hostile_text_renders_as_itself(text: str) -> None:
    shown = " ".join(text.split())
    shown = shown.replace("\x1b", "\\x1b").replace("\x00", "\\x00")
    assert html.unescape(GITHUB.render(markdown(text))) == f"<p>{shown}</p>\n"
    row = Row("fidelity", text, "failed", text, reasons=(text, "other"))
    for status in ("failed", "passed"):
        rendered = GITHUB.render(summary([Row(**{**vars(row), "status": status})], HEADER))
        assert set(re.findall(r"<(\w+)", rendered)) <= {
            *("h2", "h3", "p", "code", "ul", "li", "strong"),
            *("table", "thead", "tbody", "tr", "th", "td", "details", "summary"),
        }
        assert shown in html.unescape(rendered)


@pytest.mark.drawn
@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            Row,
            gate=st.sampled_from(("placement", "fidelity")),
            subject=st.text(max_size=20),
            status=st.sampled_from(("error", "failed", "unproven", "not run", "passed")),
            summary=st.text(max_size=200),
            reasons=st.lists(st.text(max_size=100), max_size=3).map(tuple),
        ),
        max_size=40,
    ),
    st.integers(0, 6000),
)
@settings(max_examples=100)
def test_the_room_is_kept_and_what_is_left_out_is_counted(rows: list[Row], room: int) -> None:
    text = summary(rows, HEADER, room)
    assert len(text.encode()) <= room or text == ""
    if text:
        shown = sum(line.startswith(("- **", "| ")) for line in text.splitlines())
        tables = text.count("| | gate | |")
        out = re.search(r"^(\d+) more left out", text, re.M)
        assert shown - tables + int(out[1] if out else 0) == len(rows)
        assert text.count("<details>") == text.count("</details>")


def test_annotations_worst_first_with_their_places() -> None:
    found = list(commands(ROWS, HEADER, lambda row: ("shards.toml", int(row.subject[-1]) + 1)))
    assert found == [
        "::error file=shards.toml,line=2,title=m%3AL01 placement error::m:L01: no such file",
        "::error file=shards.toml,line=2,title=m%3AL01 fidelity failed::Too low.%0AAnd NaN.",
        "::error file=shards.toml,line=1,title=m%3AL00 placement unproven::No evidence: record it.",
        "::warning file=shards.toml,line=2,title=m%3AL01 compression unproven::Nothing.",
        "::warning file=shards.toml,line=1,title=m%3AL00 compression warned::warning: 1 weight",
        "::notice title=ane gates::ane gates: 1 error, 1 failed, 2 unproven, 1 warned, 1 passed "
        f"({HEADER})",
    ]


@pytest.mark.parametrize(("count", "lines", "last"), [(10, 10, None), (11, 10, 2), (40, 10, 31)])
def test_the_tenth_annotation_counts_the_rest(count: int, lines: int, last: int | None) -> None:
    errors = [line for line in commands(failed(count), HEADER) if line.startswith("::error")]
    assert len(errors) == lines
    if last:
        more = f"::error title={last} more::Also {last} failed; see the summary."
        assert errors[-1] == more


@given(st.text(max_size=80), st.text(max_size=80))
@settings(max_examples=200)
def test_no_text_breaks_out_of_its_command(subject: str, reason: str) -> None:
    row = Row("fidelity", subject, "failed", "low", reasons=(reason,))
    line = next(commands([row], HEADER, lambda _: ("a,b:c.toml", None)))
    found = re.fullmatch(r"::error file=a%2Cb%3Ac\.toml,title=([^:,\r\n]*)::([^\r\n]*)", line)
    assert "%" not in re.sub("%(25|0A|0D)", "", found[2])
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(reason.split()))
    assert found[2].replace("%25", "%") == shown


def test_what_utf_8_cannot_say_is_escaped_and_a_long_message_is_cut() -> None:
    row = Row("fidelity", "m:\ud800", "failed", "\udfff", reasons=("\ud800",))
    assert "\\ud800" in summary([row], HEADER)
    assert next(commands([row], HEADER)) == "::error title=m%3A\\ud800 fidelity failed::\\ud800"
    row = Row("fidelity", "m:L00", "failed", "", reasons=("x" * 9000,))
    assert len(next(commands([row], HEADER))) < 4096
