"""Tests of `pytest_ane.models.families._gemma4`."""
