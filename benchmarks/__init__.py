"""Benchmarks: run from the root of the repository, e.g. ``python -m benchmarks.step_cost``."""
