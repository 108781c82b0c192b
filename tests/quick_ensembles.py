"""The reference engine for ensembles, with programs that are compiled in a part of the time."""

from contextlib import contextmanager

import jax
import numpy as np
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


def assert_same_bars(one, other):
    """To rounding, amplified by the steps: their lengths follow an error that is rounded.

    The model's deviations agree to 1e-6. Estimated errors are differences of values, so they are
    off by 1e-13 of these at least; what is not reached is NaN in both.
    """
    rounding = 1e-12 * np.nan_to_num(np.abs(other.mean))
    assert np.all(np.isnan(one.std) == np.isnan(other.std))
    assert np.all(~(np.abs(one.std - other.std) > 1e-5 * other.std + rounding))
    sizes = other.std[..., None] * other.std[..., None, :]
    off = np.abs(one.cov - other.cov)
    assert np.all(~(off > 3e-5 * sizes + rounding[..., None] * other.std[..., None, :]))
