"""Tests of `pytest_ane.gates.fidelity`."""
