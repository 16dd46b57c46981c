"""Tests of `pytest_ane.chain`."""
