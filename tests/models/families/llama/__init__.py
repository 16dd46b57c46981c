"""Tests of `pytest_ane.models.families._decoders`."""
