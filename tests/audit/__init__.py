"""A run judged again from its ledger."""
