"""The algorithm, in JAX: start, steps and their control, smoothing. The reference for engines."""
