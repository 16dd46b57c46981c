"""The gate suite: one file per gate, one test per shard. Shipped inside the wheel."""
