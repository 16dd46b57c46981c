"""Tests of `pytest_ane.models.families.zaya`."""
