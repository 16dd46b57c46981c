"""Throughput: tok/s, speculative decoding, and the bound that explains them."""
