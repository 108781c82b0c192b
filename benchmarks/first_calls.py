"""First calls: what a process waits for before its first result, each case in a fresh one.

    python -m benchmarks.first_calls [--cases PART ...] [--repeats 1] [--json FILE]

Wall and CPU seconds of importing (``probode`` and ``solve_ivp``), of the first call, and of the
first call in another process that finds on disk what this one has compiled ("again"); wall
milliseconds of the best of five later calls. Python's own bytecode is kept, as for users (a process
before the first one that is measured writes it).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

CASES = {}
"""Name to a function that returns what to call."""


def case(function):
    """Add a case by the name of its function."""
    CASES[function.__name__] = function
    return function


def ivp(fun, t_span, y0, **options):
    from probode import solve_ivp

    return lambda: solve_ivp(fun, t_span, y0, **options)


@case
def decay():
    return ivp(lambda t, y: -y, (0, 5), [1.0])


@case
def pendulum_event():
    def down(t, y):
        return y[0]

    return ivp(lambda t, y: [y[1], -9.81 * np.sin(y[0])], (0, 5), [1.0, 0.0], events=down)


def lotka_volterra(t, y):
    return [y[0] - y[0] * y[1], y[0] * y[1] - y[1]]


@case
def t_eval():
    return ivp(lotka_volterra, (0, 10), [1.0, 2.0], t_eval=np.linspace(0, 10, 100))


@case
def dense_output():
    solved = ivp(lotka_volterra, (0, 10), [1.0, 2.0], dense_output=True)
    return lambda: solved().sol(np.linspace(0, 10, 100))


def lorenz(t, y):
    return [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]


@case
def lorenz_ek1():
    return ivp(lorenz, (0, 10), [1.0, 1.0, 1.0], rtol=1e-6)


@case
def lorenz_ek0():
    return ivp(lorenz, (0, 10), [1.0, 1.0, 1.0], method="EK0", rtol=1e-6)


@case
def robertson():
    def f(t, y):
        a, b, c = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
        return [b - a, a - b - c, c]

    return ivp(f, (0, 1e5), [1.0, 0.0, 0.0], rtol=1e-5, atol=1e-9)


@case
def three_bodies():
    masses = np.array([1.0, 0.5, 0.3])

    def f(t, y):
        x, v = y[:6].reshape(3, 2), y[6:]
        a = np.zeros((3, 2))
        for i in range(3):
            for j in range(3):
                if i != j:
                    r = x[j] - x[i]
                    a[i] += masses[j] * r / np.linalg.norm(r) ** 3
        return np.concatenate([v, a.ravel()])

    y0 = [1.0, 0, -1, 0, 0, 1.5, 0, 0.5, 0, -0.6, 0.4, 0]
    return ivp(f, (0, 2), y0, rtol=1e-6)


def heat(d, method="EK1"):
    def f(t, u):
        padded = np.concatenate([[0.0], u, [0.0]])
        return (padded[2:] - 2 * padded[1:-1] + padded[:-2]) * (d + 1) ** 2

    x = np.linspace(0, 1, d + 2)[1:-1]
    return ivp(f, (0, 0.1 if d < 100 else 1e-4), np.sin(np.pi * x), method=method)


@case
def heat_20():
    return heat(20)


@case
def heat_50():
    return heat(50)


@case
def heat_1000_ek0():
    return heat(1000, "EK0")


@case
def heat_matrix_30():
    d = 30
    a = (np.diag(-2 * np.ones(d)) + np.diag(np.ones(d - 1), 1) + np.diag(np.ones(d - 1), -1)) * d**2
    return ivp(lambda t, u: a @ u, (0, 0.1), np.sin(np.linspace(0, np.pi, d)))


@case
def linalg_solve():
    mass = np.array([[2.0, 0.5, 0.1], [0.5, 1.5, 0.2], [0.1, 0.2, 1.0]])

    def f(t, y):
        q, v = y[:3], y[3:]
        m = mass + np.diag(0.1 * np.cos(q))
        return np.concatenate([v, np.linalg.solve(m, -np.sin(q))])

    return ivp(f, (0, 5), [0.5, 0.2, -0.3, 0, 0, 0])


@case
def fft():
    n = 16
    k = np.fft.fftfreq(n, 1 / n)

    def f(t, u):
        return np.real(np.fft.ifft(-0.05 * k**2 * np.fft.fft(u))) - u**3

    return ivp(f, (0, 2), np.cos(np.linspace(0, 2 * np.pi, n, endpoint=False)))


@case
def sort():
    return ivp(lambda t, y: -np.sort(y) * np.arange(1, 5), (0, 2), [1.0, 0.3, 0.8, 0.5])


@case
def cumsum():
    return ivp(lambda t, y: -np.cumsum(y) * 0.3, (0, 2), [1.0, 0.3, 0.8, 0.5])


@case
def python_only():
    def f(t, y):
        return [y[1], -9.81 * float(y[0]) if float(y[0]) > 0 else -float(y[0])]

    return ivp(f, (0, 5), [1.0, 0.0])


@case
def auto_pleiades():
    def f(t, y):
        x, v = y[:14].reshape(7, 2), y[14:]
        r = x[None] - x[:, None]
        square = (r**2).sum(-1) + np.eye(7)
        weights = np.arange(1, 8)[None, :] * (1 - np.eye(7)) * square**-1.5
        return np.concatenate([v, (weights[..., None] * r).sum(1).ravel()])

    x = [3, 3, 3, -3, -1, 2, -3, 0, 2, -4, -2, 4, 2, 4]
    v = [0, 0, 0, 0, 0, -1.25, 0, 1.0, 1.75, 0, -1.5, 0, 0, 0]
    return ivp(f, (0, 1), np.array([*x, *v], float), method="auto")


def auto(fun, t_span, y0, **options):
    return ivp(fun, t_span, y0, method="auto", order="auto", **options)


@case
def auto_lotka_volterra():
    return auto(lotka_volterra, (0, 10), [1.0, 2.0])


@case
def auto_van_der_pol():
    def f(t, y):
        return [y[1], 1e3 * (1 - y[0] ** 2) * y[1] - y[0]]

    return auto(f, (0, 2000), [2.0, 0.0])


@case
def auto_coupled_50():
    """EK0 is tried, and enough."""

    def f(t, y):
        return np.sin(np.roll(y, 1)) - 0.1 * y

    return auto(f, (0, 10), np.linspace(0, 1, 50))


@case
def auto_heat_40():
    """EK0 would do with many steps: EK1 takes its place."""
    return heat(40, "auto")


@case
def auto_reaction_diffusion_1000():
    n = 1000

    def f(t, u):
        padded = np.concatenate([u[:1], u, u[-1:]])
        return 0.1 * (padded[2:] - 2 * padded[1:-1] + padded[:-2]) + u * (1 - u)

    return auto(f, (0, 10), 0.5 + 0.4 * np.sin(np.linspace(0, 6, n)))


@case
def solve_native():
    import jax.numpy as jnp

    import probode

    def f(t, y):
        return jnp.stack([y[0] - y[0] * y[1], y[0] * y[1] - y[1]])

    return lambda: probode.solve(f, (0.0, 10.0), jnp.array([1.0, 2.0]))


@case
def solve_in_jit():
    import jax
    import jax.numpy as jnp

    import probode

    def f(t, y, a):
        return jnp.stack([a * y[0] - y[0] * y[1], y[0] * y[1] - y[1]])

    @jax.jit
    def end(a):
        return probode.solve(f, (0.0, 10.0), jnp.array([1.0, 2.0]), (a,), save_at=10.0).mean

    return lambda: np.asarray(end(1.1))


@case
def solve_grad():
    import jax
    import jax.numpy as jnp

    import probode

    def f(t, y, a):
        return jnp.stack([a * y[0] - y[0] * y[1], y[0] * y[1] - y[1]])

    def end(a):
        return probode.solve(f, (0.0, 5.0), jnp.array([1.0, 2.0]), (a,), save_at=5.0).mean[0, 0]

    slope = jax.jit(jax.jacfwd(end))
    return lambda: np.asarray(slope(1.1))


def ensemble(members, **options):
    import jax.numpy as jnp

    import probode

    def f(t, y, a):
        return jnp.stack([a * y[0] - y[0] * y[1], y[0] * y[1] - y[1]])

    rates = np.linspace(0.8, 1.2, members)
    sweep = probode.Sweep(rates)
    return lambda: probode.solve_ensemble(f, (0.0, 10.0), [1.0, 2.0], (sweep,), **options)


@case
def ensemble_1000():
    return ensemble(1000)


@case
def ensemble_1000_ek0():
    import probode

    return ensemble(1000, solver=probode.EK0(3))


@case
def figure():
    solved = ivp(lotka_volterra, (0, 10), [1.0, 2.0])()
    import matplotlib

    matplotlib.use("agg")
    return lambda: solved.plot()


@case
def samples():
    solved = ivp(lotka_volterra, (0, 10), [1.0, 2.0])()
    return lambda: np.asarray(solved.posterior.sample(5))


@case
def fit():
    import probode

    t = np.linspace(0.5, 10, 20)
    noise = 0.05 * np.random.default_rng(0).normal(size=(20, 2))
    u = ivp(lotka_volterra, (0, 10), [1.0, 2.0], t_eval=t)().y.T + noise

    def f(t, y, p):
        return [p["rate"] * y[0] - y[0] * y[1], y[0] * y[1] - y[1]]

    start = {"rate": 0.8}
    return lambda: probode.fit(f, (t, u), start, y0=[1.0, 2.0], t_span=(0, 10), noise=0.05)


def spent():
    """Wall and CPU seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def measure_here(name):
    """The numbers of one case, in this process."""
    start = spent()
    import probode

    _ = probode.solve_ivp
    imported = spent() - start
    call = CASES[name]()
    start = spent()
    call()
    first = spent() - start
    later = []
    for _ in range(5):
        before = spent()
        call()
        later.append((spent() - before)[0])
        if sum(later) > 5:
            break
    return {"import": list(imported), "first": list(first), "later": min(later)}


def measure(name, repeats):
    """The least of a few processes: without programs on disk, and with those of the first."""
    with tempfile.TemporaryDirectory() as folder:
        cold = run(name, repeats, {"PROBODE_CACHE": "0"})
        if "failed" in cold:
            return cold
        run(name, 1, {"PROBODE_CACHE": folder})
        return {**cold, "again": run(name, repeats, {"PROBODE_CACHE": folder})["first"]}


def run(name, repeats, more):
    """The least of a few processes, with more in their environment."""
    command = [sys.executable, "-m", "benchmarks.first_calls", "--here", name]
    environment = {**os.environ, **more}
    if environment.pop("PYTHONDONTWRITEBYTECODE", None):
        environment["PYTHONPYCACHEPREFIX"] = os.path.join(tempfile.gettempdir(), "first-calls")
    runs = []
    for _ in range(repeats):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1]}
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    best = {key: list(np.min([run[key] for run in runs], axis=0)) for key in ("import", "first")}
    return {**best, "later": min(run["later"] for run in runs)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=[""], metavar="PART", help="parts of names")
    parser.add_argument("--repeats", type=int, default=1, help="processes for each case")
    parser.add_argument("--json", help="where to write all numbers")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here(options.here)))
        return
    heads = ("case", "import s (CPU)", "first s (CPU)", "again s (CPU)", "later ms")
    print("{:28} {:>14} {:>15} {:>15} {:>9}".format(*heads))
    everything = {}
    measure("decay", 1)
    for name in CASES:
        if not any(part in name for part in options.cases):
            continue
        found = everything[name] = measure(name, options.repeats)
        if "failed" in found:
            print(f"{name:28} {found['failed']}", flush=True)
            continue
        waits = (f"{x[0]:6.2f} ({x[1]:5.2f})" for x in map(found.get, ("import", "first", "again")))
        print(f"{name:28} {'  '.join(waits)} {1e3 * found['later']:9.1f}", flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(everything, file, indent=1)


if __name__ == "__main__":
    main()
