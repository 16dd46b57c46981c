"""References by transformers, one layer at a time."""
