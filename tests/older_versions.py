"""Results as files, and the numbers in them: ``tests/test_files_of_older_versions.py`` reads them.

``tests/stored_files`` has those that older versions have written, named after what came next.
To write those of today, in ``tests``: ``python -c "import older_versions as o; o.write('NAME')"``.
"""

import pickle
import pkgutil
import shutil
import tempfile
from pathlib import Path

import numpy as np

import probode
from probode import EK0, EK1, Posterior, Sweep
from probode.engines import native

FOLDER = Path(__file__).parent / "stored_files"
SPAN, Y0, RTOL = (0.0, 1.0), [1.0, 0.5], 1e-3
RATES = np.linspace(0.5, 2.0, 4)
MATRIX = np.array([[0.0, 1.0], [-1.0, -0.1]])
BETWEEN = np.array([0.3, 0.7])


def decay(t, y, rate):
    """The members of the ensembles."""
    return -rate * y


def with_a_branch(t, y):
    """Only Python can evaluate it: pickled by its name."""
    return [-y[0] if y[0] > 0.5 else -0.5]


def ivp(fun, y0=Y0, **options):
    """A result with dense output."""
    return probode.solve_ivp(fun, SPAN, y0, rtol=RTOL, dense_output=True, **options)


def posterior(solver, **options):
    """A posterior of a linear problem."""
    return probode.solve(
        lambda t, y: MATRIX @ y,
        SPAN,
        np.array(Y0),
        solver=solver,
        control=probode.PIControl(rtol=RTOL),
        **options,
    )


def ensemble(**options):
    """Four members, with errors that are estimated."""
    return probode.solve_ensemble(
        *(decay, SPAN, [1.0], (Sweep(RATES, "rate"),)),
        save_at=[0.5, 1.0],
        solver=EK0(2),
        rtol=RTOL,
        calibration="defect",
        **options,
    )


PICKLED = {
    "ivp, traced": lambda: ivp(lambda t, y: -2.0 * y),
    "ivp, user's Jacobian": lambda: ivp(lambda t, y: MATRIX @ y, jac=lambda t, y: MATRIX),
    "ivp, driven from Python": lambda: ivp(with_a_branch, [1.0]),
    "ivp, events": lambda: ivp(lambda t, y: -y, events=lambda t, y: y[0] - 0.5),
    "EK1": lambda: posterior(EK1(3)),
    "EK0": lambda: posterior(EK0(2, "fixed")),
    "save_at": lambda: posterior(EK1(2), save_at=[0.5, 1.0], calibration="defect"),
    "ensemble": ensemble,
}
SAVED = {
    "steps": lambda: posterior(EK1(3)).calibrate(),
    "save_at": PICKLED["save_at"],
}
STORE = "ensemble.zarr"


def numbers(result):
    """What a user reads off a result; between the steps and by transport, it is computed anew."""
    if isinstance(result, probode.Ensemble):
        names = ("mean", "std", "steps", "status", "f_evaluations")
        return {name: np.asarray(getattr(result, name)) for name in names}
    if isinstance(result, Posterior):
        found = {"t": result.t, "mean": result.mean, "std": result.std}
        if len(result.t) > 2:
            between = result(BETWEEN)
            found |= {"between": between.mean, "std between": between.std}
            found |= {"sample": result.sample(n=1, t=BETWEEN, seed=1)}
        return {name: np.asarray(value) for name, value in found.items()}
    found = {"t": result.t, "y": result.y, "y_std": result.y_std, "nfev": np.array(result.nfev)}
    found |= {"between": result.sol(BETWEEN), "std between": result.sol.std(BETWEEN)}
    if result.t_events is not None:
        found["event"] = result.t_events[0]
    return found


def write(name):
    """All files into ``FOLDER/name.zip``, with the numbers in them and the names of all modules."""
    with tempfile.TemporaryDirectory() as place:
        folder, known = Path(place), {}
        for kind, make in PICKLED.items():
            result = make()
            (folder / f"{kind}.pickle").write_bytes(pickle.dumps(result))
            known |= {f"{kind}/{key}": value for key, value in numbers(result).items()}
        for kind, make in SAVED.items():
            result = make()
            result.save(folder / f"{kind}.npz")
            known |= {f"saved {kind}/{key}": value for key, value in numbers(result).items()}
        ensemble(store=folder / STORE)
        np.savez(folder / "numbers.npz", **known)
        modules = [module.name for module in pkgutil.walk_packages(probode.__path__, "probode.")]
        modules.remove(f"{native.__name__}._kernels")  # a library, not a module of Python's
        (folder / "modules.txt").write_text("\n".join(sorted(modules)))
        shutil.make_archive(str(FOLDER / name), "zip", folder)
