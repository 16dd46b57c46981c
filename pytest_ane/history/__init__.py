"""The memory of many runs: measurements, one line for each, and what they tell over commits.

A line is a measurement, never a verdict: it holds figures without limits, so that any policy can
judge it. `lines` writes them, `memory` reads them with duckdb, `steps` finds where a figure
changed, `compare` holds two runs, commits or machines side by side, `judge` applies a policy.
"""
