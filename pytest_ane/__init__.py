"""pytest-ane: quality gates for Core ML model shards bound for the Apple Neural Engine.

Importing this package costs nothing: it pulls in the standard library only. The plugin is
`pytest_ane.plugin`, the command line `pytest_ane.cli`.
"""

from __future__ import annotations

__version__ = "0.1.0"
