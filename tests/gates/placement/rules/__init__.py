"""Each rule: that it fires, and that it does not."""
