"""Scripts behind the figures in the docs."""
