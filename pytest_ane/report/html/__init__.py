"""The report as one page: HTML that needs no network, opened from disk."""
