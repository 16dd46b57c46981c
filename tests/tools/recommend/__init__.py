"""Tests of the search for compression."""
