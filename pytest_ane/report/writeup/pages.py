"""The page of a new write-up."""

from __future__ import annotations

from pytest_ane.core.errors import ReportError
from pytest_ane.project.writeup import INTENT, SECTIONS, part
from pytest_ane.report.markdown import prose

LONGEST_INTENT = 4000
_TITLE = 80
_WILL_STAND = {
    "Setup": "manifest, machine, versions, digests and the command",
    "Result": "the verdicts, with figures against their limits",
    "Surprise": "what is red, warned, unproven, or changed since the last write-up",
    "Next": "what the findings, the canary and the searches suggest",
    "References": "sources of the rules that spoke",
}
_LESSON = "What you learned: write it here in place of this line."


def intent_of(text: str) -> str:
    """An intent as it stands on the page: one paragraph, whose punctuation means nothing.

    Raises:
        ReportError: it says nothing, or too much.
    """
    text = " ".join(text.split())
    if not any(character.isalnum() for character in text):
        raise ReportError("The intent is empty; say in a sentence what you want to find out.")
    if len(text) > LONGEST_INTENT:
        raise ReportError(
            f"The intent has {len(text):,} characters; say it in at most {LONGEST_INTENT:,}, and "
            "the rest below it on the page."
        )
    return prose(text)


def blank(number: int, intent: str) -> str:
    """The body of a page whose intent is recorded: what `finish` and a person fill has a line."""
    title = intent if len(intent) <= 80 else f"{intent[:80].rpartition(' ')[0]} ..."
    lines = ["", f"# {number:03d}: {title}", ""]
    for section in SECTIONS:
        name = section.lower()
        if name == INTENT:
            text = part(name, intent)
        elif (what := _WILL_STAND.get(section)) is not None:
            text = part(name, f"*Not run yet. `pytest-ane writeup finish` writes here: {what}.*")
        else:
            text = f"*{_LESSON}*"
        lines += [f"## {section}", "", text, ""]
    return "\n".join(lines)
