"""Tests of recorded plans."""
