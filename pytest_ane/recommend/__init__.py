"""The smallest compression that passes every gate: a search in which only measurements count."""

from __future__ import annotations

from pytest_ane.recommend.menu import menu_of
from pytest_ane.recommend.search import Candidate, search
from pytest_ane.recommend.units import Choice, Option, Unit

__all__ = ["Candidate", "Choice", "Option", "Unit", "menu_of", "search"]
