"""Gemma 4 with experts (26B-A4B): sliding and global attention, experts in eight packs a layer."""

from __future__ import annotations

from pytest_ane.models.families.gemma4.model import FAMILY, Gemma4Model

__all__ = ["FAMILY", "Gemma4Model"]
