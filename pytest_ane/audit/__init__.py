"""A run is judged again from outside of it: its ledger, and the base branch's policy."""
