"""Tests of `pytest_ane.evidence`."""
