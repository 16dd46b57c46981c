"""As the decoders' models, these are tiny."""

from __future__ import annotations

from tests.models.families.decoder.conftest import one_thread

__all__ = ["one_thread"]
