"""The part of a posterior up to a time within its last steps.

Given the state there, what lies before depends on nothing that comes after it. So the nodes before
that time stay as they are, and the posterior at that time becomes the last of them: means, bands
and samples up to there are those of the whole.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from probode.base.compile import compiled
from probode.base.precision import double_precision
from probode.engines.dense_output import around
from probode.filter.smooth import Marginals, interpolate
from probode.filter.step import Method, State
from probode.model.gaussian import pack
from probode.model.invariant import Constraint
from probode.posterior.paths import NodePath
from probode.posterior.posterior import Posterior


def cut(posterior: Posterior, t: float, constraint: Constraint | None = None) -> Posterior:
    """The posterior up to ``t``, before it is calibrated; ``t`` lies within its interval."""
    assert isinstance(posterior.path, NodePath) and posterior.calibration is None
    with double_precision():
        path = _cut(posterior.path, posterior.method, t)
    return replace(posterior, path=path.held_to(posterior.method, constraint))


def _cut(path: NodePath, method: Method, t: float) -> NodePath:
    times: Any = np.array([t])
    rows, where = path.with_times(method, times)
    rows, last = replace(rows, whole=None), int(where[0])
    if path.smoothed is None:
        return NodePath(jax.tree.map(lambda x: x[: last + 1], rows), None)
    inserted = len(rows.t) > len(path.rows.t)
    smoothed = path.smoothed
    kept = jax.tree.map(lambda x: x[: last + (not inserted)], smoothed)
    rows = jax.tree.map(lambda x: np.array(x[: last + 1]), rows)
    if inserted:
        filtered, _, right, scale = around(path.rows, smoothed, where)
        state = jax.tree.map(np.asarray, _between(method, filtered, right, scale, times))
        end = Marginals(state.mean, pack(state.factor))
        kept = jax.tree.map(lambda a, b: np.concatenate([a, b]), kept, end)
        rows.h[-1:] = state.h
    rows.mean[-1], rows.factor[-1] = kept.mean[-1], kept.factor[-1]
    return NodePath(rows, kept)


@compiled()
def _between(method: Method, *inputs: Any) -> State:
    def one(left: State, right: State, scale: Any, t: Any) -> State:
        return interpolate(method, left, right, t, right.t - left.t, scale)

    return jax.vmap(one)(*inputs)
