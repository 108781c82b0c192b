"""Adapters: our solvers and the peers behind one call.

An adapter builds, for a problem, a function of the tolerance that returns the state at the end and
what it cost. Compilation happens in the first call and is never part of a measured time; every
result is waited for and copied to NumPy. Settings that are not a library's defaults:

- probode: dynamic diffusion, PI control (the default). The final state alone by one compiled
  function, as the other JAX libraries are called; the smoother by a plain call of ``solve``.
- probdiffeq: the same prior, order, calibration and start (Taylor mode); isotropic covariance for
  EK0 and dense for EK1; its PI control, its residual error estimate and its first-step rule;
  forward-mode Jacobians, exact; one compiled function of tolerances and initial value.
- diffrax: 64 bits, one compiled function, ``PIDController`` with its default coefficients for the
  explicit methods and its documented ones for stiff problems (0.3, 0.3) for Kvaerno5; forward-mode
  adjoint, the leanest loop. On stiff problems the first step is ``0.01 |y0| / |f(y0)|`` (with its
  own rule it never leaves the start of Van der Pol), and Kvaerno5 is also run with full Newton
  steps, which on Van der Pol take a tenth of the steps of its default, the chord method.
- SciPy: plain NumPy functions, Jacobians by finite differences, final state only (``t_eval``).
- CVODE: the same NumPy functions; dense linear solver with finite differences, GMRES for the large
  problems.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.problems import Problem

MAX_STEPS = 300_000
"""For diffrax and CVODE, instead of their 4096 and 500: beyond what any run that ends has taken."""


class Outcome(NamedTuple):
    """The state at the end, attempted steps (accepted ones for probdiffeq), calls of ``f``."""

    y: np.ndarray
    steps: int | None
    evaluations: int | None


class SolverFailed(RuntimeError):
    """The solver says that it did not reach the end."""


Run = Callable[[float], Outcome]
Build = Callable[[Problem, float], Run]
"""From a problem and a limit in seconds, which only some solvers can obey."""


def _tolerances(problem: Problem, tol: float) -> tuple[float, Any]:
    return tol, tol * problem.atol_factor


def _final_state(problem: Problem, solver: Any) -> Callable[..., Any]:
    """``(y0, args, rtol, atol) -> (y, steps, failed)`` of ours, compiled."""
    import jax

    import probode

    jax.config.update("jax_enable_x64", True)
    ivp = problem.jax

    @jax.jit
    def compiled(y0, args, rtol, atol):
        posterior = probode.solve(
            ivp.vector_field,
            ivp.t_span,
            y0,
            args=args,
            solver=solver,
            control=probode.PIControl(rtol, atol),
            save_at=ivp.t_span[1],
        )
        return posterior.mean[-1], posterior.stats.steps, ~posterior.success

    return compiled


def our_solver(method: str, order: int, diffusion: str = "dynamic") -> Any:
    """By its name; ``EK0x2`` is EK0 with two evaluations in a step.

    Steps of ``EK1-correction`` are judged by the correction of y.
    """
    import probode

    if method == "EK1-correction":
        return probode.EK1(order, diffusion, error="correction")
    if method == "EK0x2":
        return probode.EK0(order, diffusion, evaluations=2)
    return getattr(probode, method)(order, diffusion)


def ours(method: str, order: int) -> Build:
    """Ours, final state only."""

    def build(problem: Problem, limit: float) -> Run:
        return _jax_run(problem, _final_state(problem, our_solver(method, order)))

    return build


def ours_chosen() -> Build:
    """Ours with what ``solve_ivp(method="auto", order="auto")`` tries first."""

    def build(problem: Problem, limit: float) -> Run:
        from probode.ivp import choice

        t0, t1 = problem.jax.t_span
        ivp = problem.jax
        pace = choice.pace(problem.numpy, t0, ivp.y0, t1 - t0)
        price = choice.price_of_evaluation(lambda t, y: ivp.vector_field(t, y, *ivp.args), ivp.y0)
        runs: dict[Any, Run] = {}

        def chosen(tol: float) -> Run:
            found = choice.candidates(
                *(None, None, "dynamic", tol, problem.d, lambda: pace, lambda: price)
            )
            solver = found[0].solver
            if solver not in runs:
                runs[solver] = _jax_run(problem, _final_state(problem, solver))
            return runs[solver]

        loosest, tightest = problem.tolerances

        def run(tol: float) -> Outcome:
            return chosen(tol)(tol)

        def compile_all() -> None:
            """One function for each order; the first of them is what a first call waits for."""
            for one in {chosen(tol) for tol in 10.0 ** np.arange(loosest, tightest - 0.25, -0.25)}:
                one(10.0**loosest)

        run.compile_all = compile_all  # type: ignore[attr-defined]
        return run

    return build


def our_smoother(method: str, order: int) -> Build:
    """Ours, the smoother with dense output."""

    def build(problem: Problem, limit: float) -> Run:
        import probode

        ivp = problem.jax
        solver = our_solver(method, order)

        def run(tol: float) -> Outcome:
            posterior = probode.solve(
                ivp.vector_field,
                ivp.t_span,
                ivp.y0,
                args=ivp.args,
                solver=solver,
                control=probode.PIControl(*_tolerances(problem, tol)),
                time_limit=limit,
            )
            if not posterior.success:
                raise SolverFailed(posterior.message)
            stats = posterior.stats
            return Outcome(
                np.asarray(posterior.mean)[-1], int(stats.steps), int(stats.f_evaluations)
            )

        return run

    return build


def _jax_run(problem: Problem, compiled: Callable[..., Any]) -> Run:
    """Call a compiled ``(y0, args, rtol, atol) -> (y, steps, failed)``."""
    import jax.numpy as jnp

    y0 = jnp.asarray(problem.jax.y0)
    args = tuple(jnp.asarray(a) for a in problem.jax.args)

    def run(tol: float) -> Outcome:
        y, steps, failed = compiled(y0, args, *_tolerances(problem, tol))
        y = np.asarray(y)
        if bool(failed) or not np.all(np.isfinite(y)):
            raise SolverFailed("did not reach the end")
        return Outcome(y, int(steps), None)

    return run


def probdiffeq(linearisation: str, order: int) -> Build:
    """The same methods of probdiffeq."""

    def build(problem: Problem, limit: float) -> Run:
        import jax
        from probdiffeq import ivpsolve, probdiffeq

        jax.config.update("jax_enable_x64", True)
        t0, t1 = problem.jax.t_span
        expand = probdiffeq.jetexpand_ode_padded_scan(num=order)

        @jax.jit
        def compiled(y0, args, rtol, atol):
            field = probdiffeq.ode(
                lambda y, /, *, t: problem.jax.vector_field(t, y, *args),
                jacobian=probdiffeq.jacobian_materialize(jacfun=jax.jacfwd),
            )
            if linearisation == "EK1":
                model = probdiffeq.state_space_model_dense()
                constraint = model.constraint_ode_ts1(field)
            else:
                model = probdiffeq.state_space_model_isotropic()
                constraint = model.constraint_ode_ts0(field)
            solve = ivpsolve.solve_adaptive_terminal_values(
                solver=probdiffeq.solver_dynamic(
                    strategy=probdiffeq.strategy_filter(), constraint=constraint
                ),
                error=probdiffeq.error_residual_std(constraint=constraint),
                control=ivpsolve.control_proportional_integral(),
            )
            coefficients, _ = expand(field, (y0,), t=t0)
            prior = model.prior_wiener_integrated(coefficients)
            first = ivpsolve.dt0(field, (y0,), t=t0)
            solution = solve(prior, t0=t0, t1=t1, dt0=first, rtol=rtol, atol=atol)
            return solution.u.mean[0], solution.num_steps, False

        return _jax_run(problem, compiled)

    return build


def diffrax(method: str, newton: bool = False) -> Build:
    """A Runge-Kutta method of diffrax."""

    def build(problem: Problem, limit: float) -> Run:
        import diffrax
        import jax
        import optimistix

        jax.config.update("jax_enable_x64", True)
        ivp = problem.jax
        term = diffrax.ODETerm(lambda t, y, args: ivp.vector_field(t, y, *args))
        root_finder = diffrax.with_stepsize_controller_tols(optimistix.Newton)
        solver = getattr(diffrax, method)(**({"root_finder": root_finder()} if newton else {}))
        first = None
        if problem.kind == "stiff":
            slope = np.asarray(problem.numpy(ivp.t_span[0], ivp.y0))
            first = 0.01 * float(np.linalg.norm(ivp.y0) / np.linalg.norm(slope))
        coefficients = {"pcoeff": 0.3, "icoeff": 0.3} if method.startswith("Kvaerno") else {}

        @jax.jit
        def compiled(y0, args, rtol, atol):
            solution = diffrax.diffeqsolve(
                term,
                solver,
                *ivp.t_span,
                first,
                y0,
                args,
                stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol, **coefficients),
                max_steps=MAX_STEPS,
                adjoint=diffrax.ForwardMode(),
                throw=False,
            )
            failed = solution.result != diffrax.RESULTS.successful
            return solution.ys[-1], solution.stats["num_steps"], failed

        return _jax_run(problem, compiled)

    return build


def scipy(method: str) -> Build:
    """A method of `solve_ivp`."""

    def build(problem: Problem, limit: float) -> Run:
        from scipy.integrate import solve_ivp

        ivp = problem.jax

        def run(tol: float) -> Outcome:
            rtol, atol = _tolerances(problem, tol)
            solution = solve_ivp(
                problem.numpy,
                ivp.t_span,
                ivp.y0,
                method=method,
                t_eval=[ivp.t_span[1]],
                rtol=rtol,
                atol=atol,
            )
            if not solution.success:
                raise SolverFailed(solution.message)
            return Outcome(solution.y[:, -1], None, int(solution.nfev))

        return run

    return build


def cvode(method: str) -> Build:
    """SUNDIALS CVODE through scikit-sundae."""

    def build(problem: Problem, limit: float) -> Run:
        from sksundae.cvode import CVODE

        ivp = problem.jax
        linear = {"linsolver": "gmres"} if problem.kind == "large" else {}

        def rhs(t, y, slope):
            slope[:] = problem.numpy(t, y)

        def run(tol: float) -> Outcome:
            rtol, atol = _tolerances(problem, tol)
            solver = CVODE(
                rhs, method=method, rtol=rtol, atol=atol, max_num_steps=MAX_STEPS, **linear
            )
            solution = solver.solve(np.asarray(ivp.t_span), ivp.y0)
            if not solution.success:
                raise SolverFailed(str(solution.message))
            return Outcome(np.asarray(solution.y)[-1], None, int(solution.nfev))

        return run

    return build
