"""A zoo of initial value problems with reference solutions.

Each problem is made by a function whose keyword arguments are its parameters, or by name:

>>> from probode import problems
>>> problems.get("lotka-volterra").y0
array([1., 1.])
>>> problems.get("van-der-pol", mu=1e3).args
(1000.0,)
"""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from probode.problems.base import InitialValueProblem
from probode.problems.celestial import henon_heiles, pleiades, three_body
from probode.problems.nonstiff import (
    brusselator,
    exponential_decay,
    fitzhugh_nagumo,
    linear_oscillator,
    logistic,
    lorenz,
    lotka_volterra,
    neural,
    rigid_body,
    seir,
)
from probode.problems.stiff import (
    hires,
    orego,
    prothero_robinson,
    reaction_diffusion,
    rober,
    van_der_pol,
    van_der_pol_bari,
)

__all__ = [
    "InitialValueProblem",
    "brusselator",
    "exponential_decay",
    "fitzhugh_nagumo",
    "get",
    "henon_heiles",
    "hires",
    "linear_oscillator",
    "logistic",
    "lorenz",
    "lotka_volterra",
    "names",
    "neural",
    "orego",
    "pleiades",
    "prothero_robinson",
    "reaction_diffusion",
    "rigid_body",
    "rober",
    "seir",
    "three_body",
    "van_der_pol",
    "van_der_pol_bari",
]

_FACTORIES: dict[str, Callable[..., InitialValueProblem]] = {
    factory.__name__.replace("_", "-"): factory
    for factory in (
        lotka_volterra,
        logistic,
        fitzhugh_nagumo,
        brusselator,
        lorenz,
        rigid_body,
        seir,
        linear_oscillator,
        exponential_decay,
        neural,
        pleiades,
        three_body,
        henon_heiles,
        van_der_pol,
        van_der_pol_bari,
        hires,
        rober,
        orego,
        prothero_robinson,
        reaction_diffusion,
    )
}


def names() -> list[str]:
    """Return the names of all problems, in alphabetical order."""
    return sorted(_FACTORIES)


def get(name: str, **parameters: Any) -> InitialValueProblem:
    """Make the problem called `name`.

    Parameters
    ----------
    name
        One of `names()`.
    parameters
        Parameters of the problem, by keyword; those left out keep their defaults.

    Raises
    ------
    ValueError
        If there is no problem of that name.
    TypeError
        If the problem has no such parameter.
    """
    factory = _FACTORIES.get(name)
    if factory is None:
        nearest = difflib.get_close_matches(name, _FACTORIES, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ValueError(f"unknown problem {name!r}; {hint}The problems are: {', '.join(names())}")
    accepted = list(inspect.signature(factory).parameters)
    unknown = [key for key in parameters if key not in accepted]
    if unknown:
        raise TypeError(
            f"{name}: unknown parameter {', '.join(map(repr, unknown))}; "
            f"expected {', '.join(map(repr, accepted)) if accepted else 'no parameters'}"
        )
    return factory(**parameters)
