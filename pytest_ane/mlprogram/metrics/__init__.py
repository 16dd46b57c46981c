"""Numbers that say how close two tensors are; one file a kind of metric, NaN-safe."""
