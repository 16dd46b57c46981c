"""Chains: all shards of a model wired in running order, from token ids to logits and to text."""
