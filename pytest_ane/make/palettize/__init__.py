"""Fast palettization: the palettes and the packages of coremltools, in a fraction of the time.

`palettes` and `package` import numba, which compiles the arithmetic: import them when it is needed.
"""
