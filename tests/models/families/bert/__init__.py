"""Tests of BERT."""
