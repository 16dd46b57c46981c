"""Tests of `pytest_ane.families.zaya`."""
