"""What a rendered picture shows: its SVG, parsed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from xml.etree import ElementTree

from pytest_ane.report.charts.run import Picture, spec, svg

_SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Drawn:
    """The texts of an SVG, and how many marks it has of each kind."""

    texts: tuple[str, ...]
    root: ElementTree.Element

    def marks(self, kind: str) -> list[ElementTree.Element]:
        """Marks by Vega's role: `symbol`, `line`, `rect`, `rule`, `text`; axes left out."""
        groups = self.root.iter(f"{_SVG}g")
        found = [g for g in groups if f"mark-{kind} role-mark" in g.get("class", "")]
        return [mark for group in found for mark in group if mark.tag != f"{_SVG}g"]

    def at(self, kind: str) -> list[tuple[float, float]]:
        """Places of marks, x and y."""
        texts = (mark.get("transform", "")[len("translate(") : -1] for mark in self.marks(kind))
        return [tuple(map(float, text.split(",")[:2])) for text in texts]


def drawn(picture: Picture | None) -> Drawn:
    """A picture rendered by vl-convert."""
    # Nothing is fetched.
    assert not re.search('"(url|href|src)":', json.dumps(spec(picture), allow_nan=False))
    root = ElementTree.fromstring(svg(picture))
    assert [child.text or "" for child in root][:2] == [picture.title, picture.description]
    return Drawn(tuple("".join(t.itertext()) for t in root.iter(f"{_SVG}text")), root)
