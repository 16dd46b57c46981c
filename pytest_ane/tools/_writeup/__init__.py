"""Write-ups of experiments: what `pytest-ane writeup` writes into a page's sections."""
