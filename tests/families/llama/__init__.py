"""Tests of `pytest_ane.families.llama`."""
