"""Tests of `pytest_ane.families.gemma4`."""
