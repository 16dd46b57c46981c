"""Tests of `pytest_ane.manifest`."""
