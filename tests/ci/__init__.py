"""The examples for CI, run as they stand."""
