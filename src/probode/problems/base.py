"""What an initial value problem is, and how reference solutions are attached to one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from numpy.typing import ArrayLike

VectorField = Callable[..., Array]
# A time or a parameter, as a vector field sees it: possibly traced.
Scalar = Float[Array, ""]
ExactSolution = Callable[[ArrayLike], Float[np.ndarray, "*times d"]]


@dataclasses.dataclass(frozen=True, eq=False)
class InitialValueProblem:
    """An initial value problem ``y'(t) = f(t, y, *args)``, ``y(t0) = y0``.

    Attributes
    ----------
    name
        The name under which `probode.problems.get` finds the problem.
    vector_field
        ``f(t, y, *args)``, written with `jax.numpy`; ``y`` and the result have shape ``(d,)``.
        It is the same function object for every choice of parameters, so compiled solvers
        are shared between them.
    t_span
        Start and end of the time interval.
    y0
        Initial value, a read-only float64 array of shape ``(d,)``.
    args
        The parameters, passed to the vector field after ``t`` and ``y``.
    description
        One line about the problem.
    stiff
        Whether explicit methods are limited by stability at ordinary tolerances.
    reference_end
        The solution at ``t_span[1]``, or None where it is not known for these parameters.
    reference_source
        Where `reference_end` comes from and how far to trust it. Runs that agree to ``x`` differ
        by at most ``x`` in every component.
    exact
        The solution in closed form, or None: maps times of any shape to states, with the
        components along the last axis.
    """

    name: str
    vector_field: VectorField
    t_span: tuple[float, float]
    y0: Float[np.ndarray, " d"]
    args: tuple[Any, ...] = ()
    description: str = ""
    stiff: bool = False
    reference_end: Float[np.ndarray, " d"] | None = None
    reference_source: str = ""
    exact: ExactSolution | None = None

    def __post_init__(self) -> None:
        y0 = _readonly(self.y0)
        if y0.ndim != 1:
            raise ValueError(
                f"{self.name}: expected y0 of shape (d,), received shape {y0.shape}; "
                "pass the initial value as a one-dimensional sequence"
            )
        object.__setattr__(self, "y0", y0)
        if self.reference_end is not None:
            end = _readonly(self.reference_end)
            if end.shape != y0.shape:
                raise ValueError(
                    f"{self.name}: expected reference_end of shape {y0.shape}, "
                    f"received shape {end.shape}; give one value per component of y0"
                )
            object.__setattr__(self, "reference_end", end)

    @property
    def dimension(self) -> int:
        """Number of components of the state."""
        return self.y0.size


def with_reference(
    problem: InitialValueProblem, end: ArrayLike, source: str, *, valid: bool
) -> InitialValueProblem:
    """Attach a reference end value if it is `valid` for the problem's parameters."""
    if not valid:
        return problem
    return dataclasses.replace(
        problem, reference_end=np.asarray(end, dtype=np.float64), reference_source=source
    )


def with_exact(
    problem: InitialValueProblem, exact: ExactSolution, formula: str
) -> InitialValueProblem:
    """Attach a closed-form solution; the reference end value is its value at the end."""
    return dataclasses.replace(
        problem,
        exact=exact,
        reference_end=exact(problem.t_span[1]),
        reference_source=f"exact solution {formula}",
    )


def state(*components: Scalar) -> Float[Array, " d"]:
    """Stack scalar components to a state vector."""
    return jnp.stack(components)


def _readonly(values: ArrayLike) -> np.ndarray:
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array
