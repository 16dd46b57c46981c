"""Tests of `pytest_ane.models.sources`."""
