"""How the filter is run: by JAX, from Python, by C++ kernels, many members side by side."""
