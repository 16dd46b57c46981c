"""Tests of `pytest_ane.mlprogram.metrics`."""
