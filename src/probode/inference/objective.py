"""``log p(data | x) + log p(x)`` of parameters on the real line: value, slope and curvature.

What users write becomes a small program that maps ``z`` to the numbers of a :class:`Task`. It and
the task's own programs are compared by what they compute: new values, data of the same shape and
functions written anew do not compile again. All derivatives go forward in time, one direction for
each parameter, in one pass.
"""

from collections.abc import Callable
from functools import partial
from inspect import Parameter as Argument
from inspect import signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base import jax_inside
from probode.base.blas import one_blas_thread
from probode.base.compile import compiled
from probode.base.precision import double_precision, is_traced
from probode.filter.control import PControl
from probode.filter.solvers import Solver
from probode.inference.backward import fenrir_rows, plain_rows
from probode.inference.forward import forward
from probode.inference.joint import LikelihoodRows
from probode.inference.space import Space, Values
from probode.inference.task import Plan, Task, read_task
from probode.model.equation import as_equation
from probode.model.observations import Observations
from probode.programs.program import Program, trace

WITH_ROWS: dict[str, Callable[[Plan, Task], LikelihoodRows]] = {
    "fenrir": fenrir_rows,
    "plain": plain_rows,
}
"""Likelihoods that tell what they are made of."""


class Look(NamedTuple):
    """What is known of the objective at ``z``."""

    log_likelihood: float
    log_prior: float
    gradient: np.ndarray
    """Of the sum of both."""
    curvature: np.ndarray | None
    """An estimate of its negative Hessian from first derivatives (Gauss and Newton, Fisher)."""

    @property
    def value(self) -> float:
        """Log likelihood and log prior; ``-inf`` where there is no solution."""
        return self.log_likelihood + self.log_prior


class Shape(NamedTuple):
    """What of an objective is part of the program."""

    task: Program
    tree: Any
    prior: Program
    plan: Plan
    subjects: int | None


class Statement(NamedTuple):
    """A model and its data, as the user has stated them."""

    f: Any
    space: Space
    data: list[Observations]
    several: bool
    y0: Any
    """A value, or a function of the parameters."""
    t0: Any
    """A number, or a function of the parameters."""
    t1: float
    noise: Any
    """A function of the parameters, or ``None``: that of the data."""
    observe: Any
    log_density: Any
    args: tuple[Any, ...]
    jac: Any
    diffusion: Any = None
    """``σ²`` of the model, a function of the parameters; or ``None``."""

    def given(self) -> dict[str, Any]:
        """Its numbers."""
        return {
            "space": self.space.numbers,
            "t": np.stack([one.t for one in self.data]),
            "u": np.stack([one.u for one in self.data]),
            "noise": (
                np.stack([one.noise for one in self.data])
                if self.data[0].noise is not None
                else None
            ),
            "y0": None if callable(self.y0) else jax.tree.map(np.asarray, self.y0),
            "t0": None if callable(self.t0) else float(self.t0),
            "t1": float(self.t1),
        }

    def of_subject(self, p: Values, s: Any) -> Values:
        """The parameters as one data set has them."""
        own = {piece.name for piece in self.space.pieces if piece.own}
        return Values((name, x[s] if name in own else x) for name, x in p.items())

    def observations(self, p: Values, given: dict[str, Any], s: Any) -> Observations:
        """The data with what depends on the parameters."""
        order = as_equation(self.f).order
        observe, density = self.data[0].observe, self.data[0].log_density
        if self.observe is not None:
            observe = with_parameters(self.observe, order + 1, p, "observe")
        if self.log_density is not None:
            density = with_parameters(self.log_density, 2, p, "log_density")
        t, u = given["t"][s], given["u"][s]
        if self.noise is not None:
            u = u[:, 0] if u.shape[1] == 1 else u
            noise = self.noise(p)
            if not is_traced(noise, t, u):
                return Observations(t, u, noise, observe, None)
            return Observations(t, u, jnp.asarray(noise, float), observe, None)
        noise = None if given["noise"] is None or density is not None else given["noise"][s]
        return Observations.tree_unflatten((observe, density), (t, u, noise))

    def diffusion_at(self, p: Values, s: Any) -> Any:
        """``σ²`` of one data set, if it depends on the parameters."""
        return None if self.diffusion is None else self.diffusion(self.of_subject(p, s))

    def problem(self, p: Values, given: dict[str, Any], s: Any) -> dict[str, Any]:
        """Arguments of :func:`probode.log_likelihood` for one data set."""
        p = self.of_subject(p, s)
        t0 = self.t0(p) if callable(self.t0) else given["t0"]
        y0 = self.y0(p) if callable(self.y0) else given["y0"]
        return {
            "vector_field": self.f,
            "t_span": (t0, given["t1"]),
            "y0": y0,
            "args": (p, *self.args),
            "data": self.observations(p, given, s),
            "jac": self.jac,
        }


def with_parameters(
    function: Callable[..., Any], count: int, p: Values, name: str
) -> Callable[..., Any]:
    """Return ``function(..., p)`` as one without ``p``; one of at most ``count`` has none."""
    try:
        arguments = signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return function
    kinds = (Argument.POSITIONAL_ONLY, Argument.POSITIONAL_OR_KEYWORD)
    places = [a for a in arguments if a.kind in kinds and a.default is Argument.empty]
    if len(places) <= count:
        names = [a.name for a in places]
        if len(names) == 2 and names[-1] in ("p", "params", "parameters") and names[0] != "t":
            first = "u, y" if name == "log_density" else "t, y"
            raise TypeError(
                f"{name} takes {first} and the parameters in this order, got a function of "
                f"{', '.join(names)}: write {name}({first}, {names[-1]})."
            )
        return function
    if len(places) > count + 1:
        raise TypeError(
            f"{name} takes at most {count + 1} arguments, the last one being the parameters, got a "
            f"function of {', '.join(a.name for a in places)}."
        )
    return partial(function, **{places[count].name: p})


class Objective:
    """A statement with a likelihood: what is maximised, and sampled."""

    def __init__(
        self,
        statement: Statement,
        plan: Plan,
        solver: Solver,
        control: PControl,
        diffusion: float | None = None,
    ) -> None:
        self.statement, self.space, self.plan = statement, statement.space, plan
        self.solver, self.control, self.diffusion = solver, control, diffusion
        self.evaluations = 0
        self._known: dict[bytes, Look] = {}
        with double_precision():
            self._trace(diffusion)

    def _trace(self, diffusion: float | None) -> None:
        statement, box = self.statement, []
        frozen = self.plan.kind == "plain" or self.plan.calibration != "model"
        given = {**statement.given(), "control": self.control, "diffusion": diffusion}
        flat, form = jax.tree.flatten(given)
        self._numbers = [jnp.asarray(x, float) for x in flat]

        def leaves(z: Array, s: Array, *flat: Array) -> list[Array]:
            given = jax.tree.unflatten(form, flat)
            p = statement.space.with_numbers(given["space"]).values(z)
            problem = statement.problem(p, given, s)
            known = given["diffusion"]
            task = read_task(
                **problem,
                solver=self.solver,
                control=given["control"],
                diffusion=statement.diffusion_at(p, s) if known is None else known,
                frozen=frozen,
            )
            found, tree = jax.tree.flatten(task)
            box.append(tree)
            return [jnp.asarray(x) for x in found]

        def prior(z: Array, *flat: Array) -> Array:
            space = statement.space.with_numbers(jax.tree.unflatten(form, flat)["space"])
            return jnp.stack([space.log_prior(z), space.log_slope(z)])

        z = jnp.asarray(statement.space.start())
        task, constants = trace(leaves, z, jnp.asarray(0), *self._numbers)
        density, others = trace(prior, z, *self._numbers)
        subjects = len(statement.data) if statement.several else None
        self._shape = Shape(task, box[-1], density, self.plan, subjects)
        self._constants = (constants, others)
        self._diffusion = None
        if diffusion is not None:
            marked = jax.tree.flatten({**given, "diffusion": np.nan})[0]
            self._diffusion = next(
                i for i, x in enumerate(marked) if np.ndim(x) == 0 and np.isnan(x)
            )

    def temper(self, diffusion: float) -> None:
        """Another size of the model's uncertainty."""
        assert self._diffusion is not None
        self.diffusion = float(diffusion)
        with double_precision():
            self._numbers[self._diffusion] = jnp.asarray(float(diffusion))
        self._known.clear()

    def look(self, z: np.ndarray) -> Look:
        """Value, gradient and curvature; each ``z`` is looked at once."""
        z = np.asarray(z, float)
        key = z.tobytes()
        if key not in self._known:
            if len(self._known) > 64:
                self._known.clear()
            self.evaluations += 1
            with double_precision(), one_blas_thread():
                found = _look(self._shape, *self._constants, jnp.asarray(z), *self._numbers)
            values, slopes, curvature = (None if x is None else np.asarray(x) for x in found)
            assert values is not None and slopes is not None
            gradient = slopes[:, 0] + slopes[:, 1]
            self._known[key] = Look(float(values[0]), float(values[1]), gradient, curvature)
        return self._known[key]

    def priors(self, z: np.ndarray) -> np.ndarray:
        """Log prior and ``log |dx/dz|`` of each row, ``(K, 2)``."""
        with double_precision():
            return np.asarray(
                _priors(self._shape.prior, self._constants[1], jnp.asarray(z), *self._numbers)
            )

    def terms(self, z: np.ndarray) -> np.ndarray | None:
        """The log likelihood of each row, datum by datum: ``(rows, data sets, times)``.

        Each given those after it (or before it), which matters as much as the solver's uncertainty
        does: they sum up to the log likelihood. ``None`` for likelihoods that are no such sum.
        """
        if self.plan.kind not in WITH_ROWS:
            return None
        with double_precision(), one_blas_thread():
            given = self._constants[0], jnp.asarray(z), *self._numbers
            return np.asarray(_terms(self._shape, *given))

    @property
    def program(self) -> tuple[Shape, Any]:
        """What :func:`log_density` takes: what is part of a program, and numbers."""
        return self._shape, (*self._constants, self._numbers)


def log_density(shape: Shape, numbers: Any, z: Array) -> Array:
    """``log p(z | data)`` but for a constant, traceable: with the factor ``|dx/dz|``.

    For samplers; to be called within double precision. Derivatives are taken forward in time, in
    either mode.
    """
    constants, others, given = numbers

    @jax.custom_jvp
    def density(z: Array) -> Array:
        return jnp.sum(_at(shape, constants, others, given, z)[0])

    @density.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
        values, slopes, _ = _derivatives(shape, constants, others, given, primals[0])
        return jnp.sum(values), jnp.sum(slopes, axis=1) @ tangents[0]

    return density(z)


def _at(
    shape: Shape, constants: Any, others: Any, numbers: Any, z: Array
) -> tuple[Array, Array | None]:
    """Log likelihood, log prior and ``log |dx/dz|``; and the rows of the likelihood."""

    def one(s: Array) -> Any:
        leaves = jax_inside.run(shape.task.jaxpr, constants, z, s, *numbers)
        task = jax.tree.unflatten(shape.tree, leaves)
        if shape.plan.kind in WITH_ROWS:
            return WITH_ROWS[shape.plan.kind](shape.plan, task)[:3]
        return (*forward(shape.plan, task), None)

    if shape.subjects is None:
        total, succeeded, rows = one(jnp.asarray(0))
    else:
        each, fine, rows = jax.vmap(one)(jnp.arange(shape.subjects))
        total, succeeded = jnp.sum(each), jnp.all(fine)
    found = jnp.where(succeeded & (total < jnp.inf), total, -jnp.inf)
    prior = shape.prior(others, z, *numbers)
    return jnp.concatenate([found[None], prior]), None if rows is None else rows.reshape(-1)


def _derivatives(
    shape: Shape, constants: Any, others: Any, numbers: Any, z: Array
) -> tuple[Array, Array, Array | None]:
    """The values, their derivatives (zero where there is no solution), the curvature."""

    def along(direction: Array) -> Any:
        return jax.jvp(lambda z: _at(shape, constants, others, numbers, z), (z,), (direction,))

    (values, _), (slopes, rows) = jax.vmap(along, out_axes=(None, 0))(jnp.eye(z.size))
    solved = jnp.isfinite(values[0])
    slopes = jnp.where(solved & jnp.isfinite(slopes), slopes, 0.0)
    if rows is None:
        return values, slopes, None
    rows = jnp.where(solved & jnp.isfinite(rows), rows, 0.0)
    prior = jax.hessian(lambda z: shape.prior(others, z, *numbers)[0])(z)
    return values, slopes, rows @ rows.T - jnp.where(jnp.isfinite(prior), prior, 0.0)


def _compiled_look(shape: Shape, constants: Any, others: Any, z: Array, *numbers: Array) -> Any:
    return _derivatives(shape, constants, others, numbers, z)


_look = compiled(0)(_compiled_look)


@compiled(0)
def _terms(shape: Shape, constants: Any, z: Array, *numbers: Array) -> Array:
    def one(z: Array, s: Array) -> Array:
        leaves = jax_inside.run(shape.task.jaxpr, constants, z, s, *numbers)
        task: Task = jax.tree.unflatten(shape.tree, leaves)
        found = WITH_ROWS[shape.plan.kind](shape.plan, task)
        return jnp.where(found.succeeded, found.terms, -jnp.inf)

    sets = jnp.arange(shape.subjects or 1)
    return jax.lax.map(lambda row: jax.lax.map(lambda s: one(row, s), sets), z)


@compiled(0)
def _priors(prior: Program, others: Any, z: Array, *numbers: Array) -> Array:
    return jax.vmap(lambda one: prior(others, one, *numbers))(z)
