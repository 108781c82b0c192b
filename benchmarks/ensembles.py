"""Members per second of an ensemble at an error, against a loop over SciPy and diffrax vmapped.

    python -m benchmarks.ensembles [--members 10000] [--error 1e-6] [--problem lorenz]

Each competitor uses the loosest of the tolerances 1e-2, 1e-3, ... at which the largest error among
some members at the end of the interval is below the one asked for. Times are of the second call,
the best of three: compilation is reported beside. Every row runs in a process of its own, bound to
one core or to all; a GPU is used where JAX has one. Ours come with error bars, the others without.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

CHECKED = 32
REPEATS = 3
TOLERANCES = [10.0**-k for k in range(2, 13)]


def lorenz(xp, t, y, rho):
    return xp.stack(
        [10.0 * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]]
    )


def robertson(xp, t, y, rate):
    slow, fast = 0.04 * y[0], rate * y[1] * y[2]
    quadratic = 3e7 * y[1] ** 2
    return xp.stack([fast - slow, slow - fast - quadratic, quadratic])


PROBLEMS = {
    "lorenz": (lorenz, 1.0, np.ones(3), (0.0, 21.0)),
    "robertson": (robertson, 1e3, np.array([1.0, 0.0, 0.0]), (0.5e4, 2e4)),
}


def parameters(problem, members):
    return np.linspace(*PROBLEMS[problem][3], members)


def checked(members):
    return np.unique(np.linspace(0, members - 1, CHECKED).astype(int))


def run_scipy(problem, members, tolerance, method=None):
    """A Python loop; of a large ensemble only as many members as show the time of one."""
    from scipy.integrate import solve_ivp

    function, end, y0, _ = PROBLEMS[problem]
    method = method or ("RK45" if problem == "lorenz" else "LSODA")

    def one(parameter):
        def field(t, y):
            return function(np, t, y, parameter)

        done = solve_ivp(field, (0, end), y0, method, rtol=tolerance, atol=1e-3 * tolerance)
        return done.y[:, -1]

    return np.array([one(p) for p in parameters(problem, members)[checked(members)]])


def run_diffrax(problem, members, tolerance):
    import diffrax
    import jax
    import jax.numpy as jnp

    function, end, y0, _ = PROBLEMS[problem]
    solver = diffrax.Tsit5() if problem == "lorenz" else diffrax.Kvaerno5()

    @jax.jit
    @jax.vmap
    def solve(parameter, rtol):
        done = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, p: function(jnp, t, y, p)),
            solver,
            0.0,
            end,
            None,
            jnp.asarray(y0),
            parameter,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=1e-3 * rtol),
            saveat=diffrax.SaveAt(t1=True),
            max_steps=100_000,
            throw=False,
        )
        return done.ys[0]

    values = parameters(problem, members)
    return lambda rtol: np.asarray(solve(values, np.full(members, rtol)))


def run_probode(problem, members, tolerance):
    import jax.numpy as jnp

    import probode

    function, end, y0, _ = PROBLEMS[problem]
    solver = probode.EK0(3) if problem == "lorenz" else probode.EK1(3)

    def field(t, y, parameter):
        return function(jnp, t, y, parameter)

    values = parameters(problem, members)

    def solve(rtol):
        return probode.solve_ensemble(
            *(field, (0.0, end), y0, (values,)), solver=solver, rtol=rtol, atol=1e-3 * rtol
        ).mean[:, 0]

    return solve


def measure(name, problem, members, error):
    """Members per second at the error, the tolerance for it, and the seconds of a first call."""
    exact = run_scipy(problem, members, 1e-12, "DOP853" if problem == "lorenz" else "Radau")
    few = checked(members)
    if name == "scipy":
        solve, count = (lambda rtol: run_scipy(problem, members, rtol)), len(few)
    else:
        import jax

        jax.config.update("jax_enable_x64", True)
        make = run_diffrax if name == "diffrax" else run_probode
        solve, count = make(problem, members, None), members
    first = None
    for tolerance in TOLERANCES:
        start = time.perf_counter()
        found = solve(tolerance)
        first = first or time.perf_counter() - start
        found = found if name == "scipy" else found[few]
        reached = float(np.max(np.abs(found - exact) / np.maximum(np.abs(exact), 1e-3)))
        if reached <= error:
            break
    else:
        return {"members_per_second": float("nan"), "error": reached, "first": first}
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        solve(tolerance)
        times.append(time.perf_counter() - start)
    rate = count / min(times)
    return {"members_per_second": rate, "rtol": tolerance, "error": reached, "first": first}


def in_a_process(name, cores, platform, arguments):
    """Measure with so many cores, on the CPU or a GPU."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    given = [*("--problem", arguments.problem), *("--members", str(arguments.members))]
    command = [sys.executable, "-m", "benchmarks.ensembles", "--one", name, *given]
    done = subprocess.run(
        [*command, "--error", str(arguments.error)],
        env=os.environ | {"JAX_PLATFORMS": platform},
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return None
    return json.loads(done.stdout.splitlines()[-1])


def has_gpu():
    code = "import jax; print(jax.default_backend())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == "gpu"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--error", type=float, default=1e-6)
    parser.add_argument("--problem", choices=PROBLEMS, default="lorenz")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        found = measure(arguments.one, arguments.problem, arguments.members, arguments.error)
        print(json.dumps(found))
        return
    cores = len(os.sched_getaffinity(0))
    rows = [("scipy", 1, "cpu")]
    rows += [(name, n, "cpu") for n in sorted({1, cores}) for name in ("diffrax", "probode")]
    if has_gpu():
        rows += [(name, cores, "cuda") for name in ("diffrax", "probode")]
    print(f"{arguments.problem}, {arguments.members} members, largest error {arguments.error:g}")
    print(f"{'':10} {'on':8} {'members/s':>12} {'rtol':>8} {'error':>9} {'first call s':>13}")
    for name, n, platform in rows:
        found = in_a_process(name, n, platform, arguments)
        where = "GPU" if platform != "cpu" else f"{n} core{'s' if n > 1 else ''}"
        if found is None:
            print(f"{name:10} {where:8} not available")
            continue
        print(
            f"{name:10} {where:8} {found['members_per_second']:12.0f} "
            f"{found.get('rtol', np.nan):8.0e} {found['error']:9.1e} {found['first']:13.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
