"""Texts in Markdown: each renders as itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from markdown_it import MarkdownIt

from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.report.markdown import code, fenced, prose, table
from tests.hostile import HOSTILE

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("4-bit palettes on ZAYA L01, 0.97 or more", "4-bit palettes on ZAYA L01, 0.97 or more"),
        ("min_cosine of self_attn, a -> b", "min_cosine of self_attn, a -> b"),
        ("_x_ *x* [x](y) `x` |x|", r"\_x\_ \*x\* \[x\](y) \`x\` \|x\|"),
        ("<b>&lt; A&B ~~x~~ $x$", "&#60;b>&#38;lt; A&B &#126;&#126;x&#126;&#126; &#36;x&#36;"),
        ("# a", r"\# a"),
        ("--- a", r"\--- a"),
        ("1. a", r"1\. a"),
        ("0.9993", "0.9993"),
        ("a\n\n# b", "a # b"),
    ],
)  # fmt: skip
def test_prose_reads_well_as_it_is(text: str, made: str) -> None:
    assert prose(text) == made


def words(markdown: str) -> str:
    """What a reader sees of one paragraph; anything but text is an error."""
    opening, inline, closing = PARSER.parse(markdown)
    assert (opening.type, closing.type) == ("paragraph_open", "paragraph_close")
    assert {child.type for child in inline.children or ()} <= {"text", "text_special"}
    return "".join(child.content for child in inline.children or ())


@given(text=HOSTILE)
def test_any_text_renders_as_itself(text: str) -> None:
    seen = printable(" ".join(text.split()), LONGEST)
    if seen.strip():
        assert words(prose(text)).strip() == seen.strip()


@given(text=HOSTILE)
def test_any_text_stays_in_its_cell_and_in_its_fence(text: str) -> None:
    lines = "\n".join(table(("a", "b"), [("x", prose(text)), (code(text), "y")]))
    kinds = [token.type for token in PARSER.parse(lines)]
    assert kinds.count("tr_open") == 3
    assert kinds.count("td_open") == 4
    (fence,) = PARSER.parse(f"```text\n{fenced(text)}\n```")
    assert fence.type == "fence"


def test_code_and_empty_columns() -> None:
    assert code("a_b <c>") == "`a_b <c>`"
    assert code("a`b|") == r"a\`b\|"
    assert code("<!-- end -->") == "&#60;!-- end -->"
    assert list(table(("a", "b"), [("", "1")])) == ["| b |", "| --- |", "| 1 |"]
