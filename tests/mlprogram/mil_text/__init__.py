"""Tests of pytest_ane/mlprogram/text."""
