"""Tests of the manifest that `init --from` writes."""
