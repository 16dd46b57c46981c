"""Tests of the arithmetic of the ANE."""
