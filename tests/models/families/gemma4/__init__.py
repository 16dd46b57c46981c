"""Tests of `pytest_ane.models.families.gemma4`."""
