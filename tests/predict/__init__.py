"""Predictions through coremltools own classes."""
