"""A Mac that is not there."""
