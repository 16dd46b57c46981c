"""Tests of what programs cost."""
