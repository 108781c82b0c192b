"""Accurate solutions to judge errors by, and how accurate they are.

Two solutions are made in different ways. The first is used, the difference says how far to trust
it. Neither comes from this library, except where a problem of the zoo is too stiff for an explicit
method.

- a closed form, where there is one; it is trusted to a few units in the last place
- else DOP853 at rtol 2.3e-14, compared with itself at rtol 3e-13, so that the difference is larger
  than the error; on mildly stiff problems its steps are limited by stability
- else (:data:`TOO_STIFF`) EK1(5) at rtol 1e-11, compared with EK1(6) at 1e-10

All of them are compared with LSODA at rtol 1e-13 as well, a third method of another kind:
:attr:`Reference.agreement`.
"""

import jax
import numpy as np
from scipy.integrate import solve_ivp

import probode
from probode.global_error import interpolant
from probode.global_error.scales import window_mean

ABSOLUTE = 1e-3
"""Absolute tolerances, relative to rtol."""
TOO_STIFF = {"hires", "orego", "rober", "van-der-pol", "van-der-pol-bari"}
_ROUNDING = 4 * float(np.finfo(float).eps)


class Reference:
    """An accurate solution, how accurate it is, and how far LSODA is from it."""

    def __init__(self, problem):
        self.problem = problem
        if problem.exact is not None:
            self._first = problem.exact
            self._second = lambda t: problem.exact(t) * (1 + _ROUNDING)
        elif problem.name in TOO_STIFF:
            # Higher orders at such tolerances drown in rounding.
            self._first, self._second = _ek1(problem, 5, 1e-11), _ek1(problem, 6, 1e-10)
        else:
            self._first = _scipy(problem, "DOP853", 2.3e-14)
            self._second = _scipy(problem, "DOP853", 3e-13)
        self.agreement = self._agreement()

    def _agreement(self):
        """Largest difference from LSODA, relative to the largest value of each component."""
        t0, t1 = self.problem.t_span
        times = np.linspace(t0, t1, 400)[1:]
        value = self._first(times)
        size = np.maximum(np.abs(value).max(axis=0), np.finfo(float).tiny)
        other = _scipy(self.problem, "LSODA", 1e-13)
        return float(np.max(np.abs(other(times) - value) / size))

    def __call__(self, t):
        """The solution, and how far it is to be trusted."""
        value = self._first(t)
        return value, np.abs(value - self._second(t))


def _scipy(problem, method, rtol):
    args = tuple(np.asarray(a) for a in problem.args)
    with jax.enable_x64(True):
        compiled = jax.jit(problem.vector_field).lower(0.0, problem.y0, *args).compile()

        def f(t, y):
            return np.asarray(compiled(np.float64(t), y, *args))

        with np.errstate(all="ignore"):
            solution = solve_ivp(
                f, problem.t_span, problem.y0, method, dense_output=True, rtol=rtol, atol=1e-17
            )
    if not solution.success:
        raise RuntimeError(f"the reference ({method}) did not reach the end")
    return lambda t: solution.sol(t).T


def _ek1(problem, order, rtol):
    posterior = probode.solve(
        *(problem.vector_field, problem.t_span, problem.y0, problem.args),
        solver=probode.EK1(order),
        control=probode.PIControl(rtol=rtol, atol=ABSOLUTE * rtol),
        max_steps=400_000,
    )
    if not bool(posterior.success):
        raise RuntimeError("the reference (EK1) did not reach the end")
    nodes, means = posterior.t, posterior.path.means

    def hermite(t):
        """Values between close nodes, from values and three derivatives at both."""
        i = np.clip(np.searchsorted(nodes, t) - 1, 0, len(nodes) - 2)
        h = nodes[i + 1] - nodes[i]
        w = interpolant.data(np, 3, means[i], means[i + 1], h)
        rows = interpolant.value_rows(np, 3, (t - nodes[i]) / h)
        return means[i, 0] + np.einsum("tw,twd->td", rows, w)

    return hermite


def judgeable(error, uncertainty):
    """Where the reference is 20 times more exact than the errors around (two nodes either way)."""
    around, doubt = (np.sqrt(window_mean(np, x**2, 2)) for x in (error, uncertainty))
    return 20 * np.maximum(uncertainty, doubt) <= around
