"""Tests of `pytest_ane.fidelity.metrics`."""
