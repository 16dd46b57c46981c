"""Probes: input sequences to a shard, and the reference's outputs for each."""
