"""Which transport suits which solver."""

from collections.abc import Callable
from functools import lru_cache

from probode.base.errors import check_choice
from probode.filter.step import Method
from probode.global_error.implicit import ImplicitNewton
from probode.global_error.interpolant import contact
from probode.global_error.newton import Newton
from probode.global_error.stages import Collocation
from probode.global_error.sweeps import Sweeps

Scheme = Newton | Sweeps

MODES = ("defect", "defect-fast")

_HIGH = 5
"""The order from which on the error beside a filter takes a stage more."""
_BLOCK_STEPS = 256
_LIGHT_BLOCK_STEPS = 1024
"""Without Jacobians preparing a step costs next to nothing, and so does padding."""
_BLOCK_BYTES = 32 * 2**20


def scheme_for(method: Method, smoothed: bool, mode: str, has_jacobian: bool = True) -> Scheme:
    """The transport of a solver: implicit where the solver is, Jacobian-free where it is.

    Of EK0 under a prior that knows a linear part it is implicit, if there is a Jacobian to be had.

    ``"defect"``: Radau IIA with four stages and a correction (8 ``f`` and a Jacobian a step), or
    two sweeps of Gauss with three stages (6 ``f``; with four stages beside a filter of order 5 or
    more, or 4 with two evaluations). ``"defect-fast"``: three stages, linearised or one sweep
    (3 ``f``).
    """
    check_choice("mode", mode, MODES)
    equation = method.equation
    kind = KINDS.get(equation.transport)
    if kind is None:
        raise ValueError(
            f"global errors cannot be estimated for {type(equation).__name__}: its transport is "
            f"{equation.transport!r}, known are {', '.join(KINDS)}. Use calibration='model'."
        )
    return kind(method, smoothed, mode == "defect-fast", has_jacobian)


def _explicit(method: Method, smoothed: bool, fast: bool, has_jacobian: bool) -> Scheme:
    """Along the equation as a system of first order, of which the solver has so high an order."""
    equation, follows = method.equation, method.follows if has_jacobian else "none"
    order = equation.lowered(method.prior.order)
    return _scheme(order, method.evaluations, follows, smoothed, fast, equation.order)


def _implicit(method: Method, smoothed: bool, fast: bool, has_jacobian: bool) -> Scheme:
    """Along ``F(t, y, y') = 0`` itself; as many stages and corrections as for EK1."""
    stages, corrections = (3, 0) if fast else (4, 1)
    k = contact(method.prior.order, smoothed)
    return ImplicitNewton(Collocation("radau", stages), k, corrections)


KINDS: dict[str, Callable[[Method, bool, bool, bool], Scheme]] = {
    "explicit": _explicit,
    "implicit": _implicit,
}
"""Transports by the name that an equation has for its own (``Equation.transport``)."""


@lru_cache(maxsize=64)
def _scheme(
    order: int, evaluations: int, jacobian: str, smoothed: bool, fast: bool, derivatives: int
) -> Scheme:
    k = contact(order, smoothed)
    if jacobian == "full":
        return Newton(Collocation("radau", 3 if fast else 4), k, 0 if fast else 1)
    if jacobian == "diagonal":
        stages = Collocation("radau", 3 if fast else 4)
        return Sweeps(stages, k, 1 if fast else 2, diagonal=True, order=derivatives)
    # Derivatives of a filter are off by so much that their errors have to be swept in turn; the
    # kernels, which do not know how, do well with those of a smoother.
    in_turn = 1 if smoothed else derivatives
    # Three stages have the order six, as errors of high orders have themselves, where the
    # interpolants that they are compared with are only cubic. A second evaluation leaves errors of
    # an order more.
    high = order + evaluations - 1 >= _HIGH
    count = 4 if not smoothed and not fast and high else 3
    return Sweeps(Collocation("gauss", count), k, 1 if fast else 2, order=in_turn)


def block_steps(scheme: Scheme, d: int) -> int:
    """Steps that are prepared at once: one size for a scheme and a dimension."""
    s = scheme.collocation.s
    row = 8 * (6 * s * d + (scheme.jacobians_per_step and (2 * s + 2) * d * d))
    most = _BLOCK_STEPS if scheme.jacobians_per_step else _LIGHT_BLOCK_STEPS
    return int(max(4, min(most, _BLOCK_BYTES // row)))
