"""Projects as tests of the plugin have them."""

from __future__ import annotations

from tests.plugin.conftest import _loaded, project, workshop

__all__ = ["_loaded", "project", "workshop"]
