"""Tests of pytest_ane/mil/text."""
