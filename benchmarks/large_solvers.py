"""Solvers for large stiff problems behind one call: ours, SciPy's, SUNDIALS', diffrax's.

``build(name, problem)`` returns a function of the tolerance that solves to the end and hands out
the state there and the counts, or says why not. All of them get the exact Jacobian with its
pattern, made by the same compiled products with JAX (columns that do not meet are taken together),
and whichever of the NumPy and the compiled function is faster; the exceptions:

- SciPy's BDF and Radau: as they are. Their ordering of a sparse LU cannot be chosen.
- CVODE through scikit-sundae: ``band`` makes its Jacobian by differences, in C (a function for it
  would have to fill a full matrix); ``sparse`` takes the exact one; ``gmres`` products by
  differences, and the preconditioner if the problem has one.
- IDA, for mass matrices, which CVODE and SciPy do not take: the residual ``M y' - f``.
- diffrax: Kvaerno5 writes the Jacobian out, so it is for a few hundred unknowns.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize._numdiff import group_columns
from scipy.sparse import csc_array

from benchmarks.large_problems import Problem

MOST_STEPS = 500_000
LARGEST_CUBE = 8000
"""Unknowns in three dimensions up to which systems are factorised."""


class Unfit(RuntimeError):
    """A solver that is not made for the problem."""


class Failed(RuntimeError):
    """It says that it did not reach the end."""


@dataclass
class Outcome:
    """The state at the end, or at the times asked for, and what it took."""

    y: np.ndarray
    steps: int | None = None
    f: int | None = None
    jacobians: int | None = None
    factorisations: int | None = None
    bars: float | None = None
    """Root mean square of the error bars at the end, in units of ``unit + |y|``."""
    flags: tuple[str, ...] = ()
    rest: dict[str, Any] = field(default_factory=dict)


Run = Callable[[float], Outcome]


# ------------------------------------------------------------------ what all of them get


def quick_function(problem: Problem) -> tuple[Callable[[float, np.ndarray], np.ndarray], str]:
    """``f(t, y)`` of NumPy arrays, the faster one, and which it is."""
    if "quick" in problem.cache:
        return problem.cache["quick"]
    import jax

    call = jax.jit(problem.in_jax)

    def compiled(t: float, y: np.ndarray) -> np.ndarray:
        return np.asarray(call(t, y))

    def seconds(f: Callable[..., Any]) -> float:
        f(0.0, problem.y0)
        found = []
        for _ in range(7):
            began = time.perf_counter()
            f(0.0, problem.y0)
            found.append(time.perf_counter() - began)
        return min(found)

    plain = problem.in_numpy
    both = [(compiled, "compiled"), (plain, "NumPy")]
    chosen = min(both, key=lambda one: seconds(one[0]))
    return problem.cache.setdefault("quick", chosen)


def exact_jacobian(problem: Problem) -> Callable[[float, np.ndarray], csc_array]:
    """``J(t, y)``, sparse, by products with columns that have no row in common."""
    if "jacobian" in problem.cache:
        return problem.cache["jacobian"]
    import jax
    import jax.numpy as jnp

    pattern = problem.sparsity
    groups = group_columns(pattern)
    columns = np.repeat(np.arange(problem.d), np.diff(pattern.indptr))
    rows, colours = pattern.indices, groups[columns]
    count = int(groups.max()) + 1

    @jax.jit
    def values(t: Any, y: Any) -> Any:
        _, push = jax.linearize(lambda y: problem.in_jax(t, y), y)
        of = jnp.asarray(groups)
        products = jax.lax.map(lambda k: push((of == k).astype(float)), jnp.arange(count))
        return products[colours, rows]

    def jacobian(t: float, y: np.ndarray) -> csc_array:
        data = np.array(values(t, y))
        return csc_array((data, rows, pattern.indptr), shape=pattern.shape)

    problem.cache["jacobian"] = jacobian
    return jacobian


def size(problem: Problem, y: np.ndarray, values: np.ndarray) -> float:
    """Root mean square in units of ``unit + |y|``: of ``rtol`` where a tolerance is met."""
    return float(np.sqrt(np.mean((values / (problem.unit + np.abs(y))) ** 2)))


# ------------------------------------------------------------------ ours


def our_solver(problem: Problem, order: int = 4, krylov: bool = False) -> Any:
    """SparseEK1, with the problem's preconditioner if it iterates."""
    import jax.numpy as jnp

    import probode

    if not krylov:
        return probode.SparseEK1(order)
    given = problem.preconditioner
    if given is None:
        return probode.SparseEK1(order, linear="krylov")
    if "near" not in problem.cache:
        problem.cache["near"] = lambda t, y, c, b: given(jnp, c, b)
    return probode.SparseEK1(order, linear="krylov", preconditioner=problem.cache["near"])


def equation(problem: Problem) -> Any:
    """For ``probode.solve``; one and the same object in all calls."""
    import probode

    if problem.mass is None:
        return problem.in_jax
    if "equation" not in problem.cache:
        problem.cache["equation"] = probode.MassMatrix(problem.in_jax, problem.mass())
    return problem.cache["equation"]


def posterior_of(
    problem: Problem,
    rtol: float,
    order: int = 4,
    *,
    krylov: bool = False,
    bars: bool = True,
    save_at: Any = None,
) -> Any:
    """Ours, as users call it."""
    import probode

    return probode.solve(
        equation(problem),
        (0.0, problem.end),
        problem.y0,
        solver=our_solver(problem, order, krylov),
        control=probode.PIControl(rtol, rtol * problem.unit),
        calibration="defect" if bars else "model",
        save_at=save_at,
        max_steps=MOST_STEPS,
    )


def _ours(order: int, bars: bool, krylov: bool = False) -> Callable[[Problem], Run]:
    def build(problem: Problem) -> Run:
        if krylov and problem.preconditioner is None:
            raise Unfit("no preconditioner")

        def run(rtol: float) -> Outcome:
            posterior = posterior_of(
                problem, rtol, order, krylov=krylov, bars=bars, save_at=[problem.end]
            )
            if not posterior.success:
                raise Failed(posterior.message)
            stats, y = posterior.stats, np.asarray(posterior.mean)[-1]
            return Outcome(
                y,
                int(stats.steps),
                int(stats.f_evaluations) + int(stats.calibration_f_evaluations),
                int(stats.jacobian_evaluations),
                int(stats.factorisations),
                size(problem, y, np.asarray(posterior.std)[-1]) if bars else None,
                posterior.diagnose().flags if bars else (),
            )

        return run

    return build


# ------------------------------------------------------------------ peers


def _scipy(method: str) -> Callable[[Problem], Run]:
    def build(problem: Problem) -> Run:
        if problem.mass is not None:
            raise Unfit("no mass matrices")
        f, jacobian = quick_function(problem)[0], exact_jacobian(problem)

        def run(rtol: float) -> Outcome:
            found = solve_ivp(
                *(f, (0.0, problem.end), problem.y0, method),
                t_eval=[problem.end],
                jac=jacobian,
                rtol=rtol,
                atol=rtol * problem.unit,
            )
            if not found.success:
                raise Failed(found.message)
            return Outcome(found.y[:, -1], None, found.nfev, found.njev, found.nlu)

        return run

    return build


def cvode_options(problem: Problem, linear: str) -> dict[str, Any]:
    """How CVODE (or IDA) solves its systems."""
    if linear == "band":
        if problem.bands is None:
            raise Unfit("not in bands")
        return {"linsolver": "band", "lband": problem.bands[0], "uband": problem.bands[1]}
    if linear == "gmres":
        options: dict[str, Any] = {"linsolver": "gmres", "krylov_dim": 30}
        if problem.preconditioner is not None:
            from sksundae.cvode import CVODEPrecond

            near = problem.preconditioner

            def solve(t, y, yp, rvec, zvec, gamma, delta, lr):
                zvec[:] = near(np, gamma, rvec)

            options["precond"] = CVODEPrecond(None, solve)
        return options
    jacobian = exact_jacobian(problem)
    if not problem.sparsity.diagonal().all():
        raise Unfit("a Jacobian without its diagonal")

    def fill(t, y, yp, out):
        out[:] = jacobian(t, np.array(y)).data

    return {"linsolver": "sparse", "sparsity": problem.sparsity, "jacfn": fill}


def cvode_solver(problem: Problem, rtol: float, options: dict[str, Any]) -> tuple[Any, list[int]]:
    """CVODE, and where it counts its Jacobians."""
    from sksundae.cvode import CVODE

    f, counts = quick_function(problem)[0], [0]

    def slope(t, y, yp):
        yp[:] = f(t, y)

    given = dict(options)
    if "jacfn" in given:
        inner = given["jacfn"]

        def counting(t, y, yp, out):
            counts[0] += 1
            inner(t, y, yp, out)

        given["jacfn"] = counting
    atol = rtol * problem.unit
    return CVODE(slope, rtol=rtol, atol=atol, max_num_steps=MOST_STEPS, **given), counts


def _cvode(linear: str) -> Callable[[Problem], Run]:
    def build(problem: Problem) -> Run:
        if problem.mass is not None:
            raise Unfit("no mass matrices")
        options = cvode_options(problem, linear)

        def run(rtol: float) -> Outcome:
            solver, _ = cvode_solver(problem, rtol, options)
            # Three times: of two it would keep every step.
            found = solver.solve(np.array([0.0, 0.5, 1.0]) * problem.end, problem.y0)
            if not found.success:
                raise Failed(str(found.message))
            return Outcome(np.array(found.y[-1]), None, int(found.nfev), int(found.njev))

        return run

    return build


def _ida(problem: Problem) -> Run:
    from scipy.sparse.linalg import splu
    from sksundae.ida import IDA

    if problem.mass is None:
        raise Unfit("no mass matrix")
    mass, f = problem.mass(), quick_function(problem)[0]
    slope0 = splu(mass).solve(f(0.0, problem.y0))
    jacobian, pattern = exact_jacobian(problem), problem.sparsity
    if (mass != 0).nnz != pattern.nnz:
        raise Unfit("mass and Jacobian with entries in different places")
    mass.sort_indices()

    def residual(t, y, slope, out):
        out[:] = mass @ slope - f(t, y)

    def fill(t, y, slope, out, cj, matrix):
        matrix[:] = cj * mass.data - jacobian(t, np.array(y)).data

    def run(rtol: float) -> Outcome:
        solver = IDA(
            residual,
            rtol=rtol,
            atol=rtol * problem.unit,
            linsolver="sparse",
            sparsity=pattern,
            jacfn=fill,
            max_num_steps=MOST_STEPS,
        )
        found = solver.solve(np.array([0.0, 0.5, 1.0]) * problem.end, problem.y0, slope0)
        if not found.success:
            raise Failed(str(found.message))
        return Outcome(np.array(found.y[-1]), None, int(found.nfev), int(found.njev))

    return run


def _diffrax(problem: Problem) -> Run:
    import diffrax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    if problem.mass is not None:
        raise Unfit("no mass matrices")
    if problem.d > 450:
        raise Unfit("its Jacobian is written out")
    term = diffrax.ODETerm(lambda t, y, args: problem.in_jax(t, y))
    slope = problem.in_numpy(0.0, problem.y0)
    first = 1e-3 * float(np.linalg.norm(problem.unit + problem.y0) / np.linalg.norm(slope))
    first = min(first, 1e-3 * problem.end)

    @jax.jit
    def compiled(y0, rtol, atol):
        solution = diffrax.diffeqsolve(
            *(term, diffrax.Kvaerno5(), 0.0, problem.end, first, y0),
            stepsize_controller=diffrax.PIDController(rtol, atol, pcoeff=0.3, icoeff=0.3),
            max_steps=MOST_STEPS,
            adjoint=diffrax.ForwardMode(),
            throw=False,
        )
        failed = solution.result != diffrax.RESULTS.successful
        return solution.ys[-1], solution.stats["num_steps"], failed

    def run(rtol: float) -> Outcome:
        y, steps, failed = compiled(jnp.asarray(problem.y0), rtol, rtol * problem.unit)
        if failed:
            raise Failed("did not reach the end")
        return Outcome(np.asarray(y), int(steps))

    return run


BUILDERS: dict[str, Callable[[Problem], Run]] = {
    "SparseEK1(3)": _ours(3, bars=True),
    "SparseEK1(4)": _ours(4, bars=True),
    "SparseEK1(5)": _ours(5, bars=True),
    "SparseEK1(3), no bars": _ours(3, bars=False),
    "SparseEK1(4), no bars": _ours(4, bars=False),
    "SparseEK1(5), no bars": _ours(5, bars=False),
    "SparseEK1(4) GMRES": _ours(4, bars=True, krylov=True),
    "SparseEK1(4) GMRES, no bars": _ours(4, bars=False, krylov=True),
    "SciPy BDF": _scipy("BDF"),
    "SciPy Radau": _scipy("Radau"),
    "CVODE band": _cvode("band"),
    "CVODE sparse": _cvode("sparse"),
    "CVODE GMRES": _cvode("gmres"),
    "IDA sparse": _ida,
    "diffrax Kvaerno5": _diffrax,
}
WITHOUT = ", no bars"
"""Ours without error bars have the name of ours with them, and this."""


def build(name: str, problem: Problem) -> Run:
    """A solver by its name; :class:`Unfit` says why not."""
    if name not in BUILDERS:
        raise ValueError(f"a solver must be one of {', '.join(BUILDERS)}, got {name!r}.")
    return BUILDERS[name](problem)


def fits(problem: Problem, names: Any) -> list[str]:
    """Those that make sense: Krylov methods on what has a preconditioner, bands where there are.

    No LU of large grids in three dimensions.
    """
    found, solid = [], problem.space == 3 and problem.d > LARGEST_CUBE
    for name in names:
        if solid and "GMRES" not in name:
            continue
        if "GMRES" in name and problem.preconditioner is None:
            continue
        if "sparse" in name and problem.bands is not None:
            continue
        found.append(name)
    return found
