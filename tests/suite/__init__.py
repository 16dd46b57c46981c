"""Tests of the gates on real weights."""
