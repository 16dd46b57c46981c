"""Without the plugin (`-p no:ane`) there is nothing these gates could ask."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the gates out where the plugin is switched off."""
    return None if config.pluginmanager.hasplugin("ane") else True
