"""Fast palettization: the palettes and the packages of coremltools, in a fraction of the time.

`_palettes` imports numba, which compiles the arithmetic: import it when it is needed.
"""
