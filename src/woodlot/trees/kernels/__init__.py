"""Numba kernels: arrays in, arrays out. Nothing here knows of parties, messages or estimators."""
