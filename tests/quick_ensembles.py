"""Ensembles in tests run once: their programs are compiled in a part of the time."""

from contextlib import contextmanager

import jax
import pytest

from probode.ensemble import batch

_OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


@contextmanager
def quick_compilation():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("advance_lanes", "exchange_lanes"):
            function = getattr(batch, name).__wrapped__
            patch.setattr(
                batch, name, jax.jit(function, static_argnums=0, compiler_options=_OPTIONS)
            )
        yield
