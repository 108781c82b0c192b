"""Compiling what runs once: in a quarter of the time."""

import functools

import jax

from probode.base.jax_inside import known_options

QUICKLY = known_options({"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False})
"""Options of the compiler."""

jit_once = functools.partial(jax.jit, compiler_options=QUICKLY)
"""``jax.jit`` for large programs that run once."""
