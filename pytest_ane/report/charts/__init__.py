"""Pictures of whole models for pages and write-ups: Vega-Lite templates filled with tables."""
