"""Tests of `pytest_ane.behaviour`."""
