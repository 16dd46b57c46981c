"""The gates, equals in one registry: whoever works on all of them names none."""
