"""The reference engine for ensembles, with programs that are compiled in a part of the time."""

from contextlib import contextmanager

import jax
import pytest
from compiling import QUICKLY

from probode.ensemble import batch, engines


@contextmanager
def quick_reference_engine():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "_suits", lambda *_: False)
        patch.setattr(engines, "_kernels_lack", lambda *_: "permission")
        for name in ("advance_lanes", "exchange_lanes"):
            function = getattr(batch, name).__wrapped__
            patch.setattr(
                batch, name, jax.jit(function, static_argnums=0, compiler_options=QUICKLY)
            )
        yield
