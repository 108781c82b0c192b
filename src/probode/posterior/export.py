"""Posteriors for other programs (xarray, netCDF, pandas), and as files that can be loaded again.

xarray, netCDF and pandas come with ``pip install probode[export]`` and are imported when needed;
:func:`save` and :func:`load` need NumPy only.

A saved posterior is NumPy's ``.npz``: plain arrays, and a ``header`` in JSON that says how they go
together. Loading builds objects of the classes listed here and of no others; nothing in the file
is executed.
"""

import dataclasses
import importlib
import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from probode.filter.control import ControlState
from probode.filter.loop import Counts, Rows, Solve
from probode.filter.saving import Saving
from probode.filter.smooth import Kernel, Marginals
from probode.filter.solvers import EK0, EK1, DiagonalEK1, SparseEK1
from probode.filter.start import DiffuseStart, RungeKuttaStart, SlopeStart, TaylorStart
from probode.filter.step import Method, State
from probode.global_error.beside import Step, Tracker
from probode.global_error.diagnosis import Tally
from probode.global_error.implicit import ImplicitNewton
from probode.global_error.newton import Newton
from probode.global_error.result import Calibration
from probode.global_error.stages import Collocation
from probode.global_error.sweeps import Sweeps
from probode.global_error.transport import Carry
from probode.model.diffusion import DynamicDiffusion, Evidence, FixedDiffusion
from probode.model.equation import FirstOrder
from probode.model.implicit import Implicit
from probode.model.invariant import Constraint, Landed
from probode.model.ioup import IOUP
from probode.model.mass_matrix import MassMatrix
from probode.model.matern import Matern
from probode.model.prior import IWP
from probode.model.second_order import SecondOrder
from probode.model.structure import BlockDiagonal, Dense, Isotropic
from probode.posterior.chosen import ChosenPath, Trail
from probode.posterior.conditioned import Given
from probode.posterior.held import Held
from probode.posterior.paths import NodePath, SavedPath
from probode.posterior.pieces import PiecewisePosterior
from probode.posterior.posterior import Posterior, Problem, Stats, component_names, one_solve

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset

__all__ = ["load", "save", "to_dataframe", "to_netcdf", "to_xarray"]

FORMAT = "probode posterior"
FORMAT_VERSION = 1
"""Raised when an old reader would misunderstand the file."""

DATASET_NAMES = {"mean": "y", "std": "y_std", "cov": "y_cov"}
"""Variables of Datasets: as in the result of ``solve_ivp``; ``dataset.mean`` is xarray's method."""

_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        *(Posterior, NodePath, SavedPath, ChosenPath, Trail, Rows, Marginals, Stats, Evidence),
        *(Calibration, Problem, Tracker, Step, Carry, Tally, Newton, Sweeps, Collocation),
        *(Saving, Solve, State, Kernel, ControlState, Counts, Held, Landed, Given),
        *(EK0, EK1, DiagonalEK1, SparseEK1, FixedDiffusion, DynamicDiffusion),
        *(TaylorStart, RungeKuttaStart, DiffuseStart, SlopeStart),
        *(Method, IWP, IOUP, Matern, FirstOrder, SecondOrder, Isotropic, BlockDiagonal, Dense),
        *(Implicit, MassMatrix, ImplicitNewton, PiecewisePosterior),
    )
}
"""What a saved posterior may be made of."""


def to_xarray(posterior: Posterior, samples: int = 0, *, seed: Any = 0, t: Any = None) -> "Dataset":
    """An xarray Dataset of ``y`` (the mean) and ``y_std`` over ``time`` and ``state``.

    Parameters
    ----------
    posterior
        What :func:`probode.solve` returned.
    samples, seed
        Number of joint samples to put into the variable ``samples``, and what they are drawn with.
    t
        Times; by default ``posterior.t``.

    Returns
    -------
    Dataset
        ``state`` counts the components of ``y`` flattened in C order; the attribute ``shape`` is
        that of ``y0``. Of an equation of second order ``dy`` and ``dy_std`` are the velocities. The
        other attributes say how the solution was computed and how it ended.
    """
    xarray = library("xarray")
    posterior = one_solve(posterior, "to_xarray")
    (times, mean, std), *others = _tables(posterior, t)
    over, named = ("time", "state"), {"long_name": "posterior standard deviation"}
    variables: dict[str, Any] = {
        DATASET_NAMES["mean"]: (over, mean, {"long_name": "posterior mean"}),
        DATASET_NAMES["std"]: (over, std, named),
    }
    for k, (_, values, stds) in enumerate(others, 1):
        derivative = f"posterior mean of derivative {k}"
        variables[_prefix(k) + "y"] = over, values, {"long_name": derivative}
        variables[_prefix(k) + "y_std"] = over, stds, named
    coordinates = {"time": times, "state": np.arange(mean.shape[1])}
    if samples:
        drawn = np.asarray(posterior.sample(samples, seed=seed, t=None if t is None else times))
        drawn = drawn.reshape(samples, *mean.shape)
        variables["samples"] = ("sample", "time", "state"), drawn, {"long_name": "joint samples"}
        coordinates["sample"] = np.arange(samples)
    return xarray.Dataset(variables, coordinates, _attributes(posterior))


def to_netcdf(
    posterior: Posterior,
    path: str | os.PathLike[str],
    samples: int = 0,
    *,
    seed: Any = 0,
    t: Any = None,
) -> None:
    """Write what :func:`to_xarray` returns into a netCDF file."""
    library("netCDF4")
    to_xarray(posterior, samples, seed=seed, t=t).to_netcdf(path, engine="netcdf4")


def to_dataframe(
    posterior: Posterior, *, t: Any = None, names: Sequence[str] | None = None
) -> "DataFrame":
    """A pandas DataFrame over ``time``: for each component its mean and its standard deviation.

    Parameters
    ----------
    posterior
        What :func:`probode.solve` returned.
    t
        Times; by default ``posterior.t``.
    names
        One name per component of ``y`` (flattened in C order); by default ``y1``, ``y2``, ..., for
        matrices ``y1_1``, ``y1_2``, ..., ``y`` for a number, and for complex states ``Re_y1``, ...,
        ``Im_y1``, ...

    Returns
    -------
    DataFrame
        With columns ``name`` and ``name_std``, component after component; then, for an equation of
        second order, ``dname`` and ``dname_std``, the velocities.
    """
    pandas = library("pandas")
    posterior = one_solve(posterior, "to_dataframe")
    (times, mean, std), *others = _tables(posterior, t)
    d = mean.shape[1]
    if names is None:
        names = component_names(posterior, lambda index: "y" + "_".join(index), "{part}_{name}")
    elif isinstance(names, str) or len(names) != d:
        raise ValueError(f"names must be {d} strings, one per component, got {names!r}.")
    columns = {}
    for i, name in enumerate(names):
        columns[name], columns[f"{name}_std"] = mean[:, i], std[:, i]
    for k, (_, values, stds) in enumerate(others, 1):
        for i, name in enumerate(names):
            own = _prefix(k) + name
            columns[own], columns[f"{own}_std"] = values[:, i], stds[:, i]
    return pandas.DataFrame(columns, index=pandas.Index(times, name="time"))


def save(posterior: Posterior | PiecewisePosterior, path: str | os.PathLike[str]) -> None:
    """Write a posterior into a file, for :func:`load`.

    Parameters
    ----------
    posterior
        What :func:`probode.solve` returned: all steps, or the times of ``save_at``; or that of a
        solution in pieces.
    path
        The file; ``.npz`` is the usual ending. What is there is overwritten.
    """
    if isinstance(posterior, Posterior):
        posterior = one_solve(posterior, "save")
    else:
        pieces = tuple(one_solve(piece, "save") for piece in posterior.pieces)
        posterior = dataclasses.replace(posterior, pieces=pieces)
    arrays: dict[str, np.ndarray] = {}
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "probode_version": library_version(),
        "status": posterior.status.name,
        "posterior": _encode(posterior, "posterior", arrays),
    }
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)


def load(path: str | os.PathLike[str]) -> Posterior | PiecewisePosterior:
    """Read a posterior that :func:`save` has written: the same, bit for bit.

    Parameters
    ----------
    path
        The file. It is read as data; nothing in it is executed.
    """
    name = os.fspath(path)
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{name!r} is not a posterior saved by probode.")
        file.seek(0)
        with np.load(file, allow_pickle=False) as members:
            header = _header(members, name)
            try:
                posterior = _decode(header["posterior"], members)
            except (KeyError, TypeError, ValueError, *_DAMAGED) as error:
                raise ValueError(f"{name!r} is a damaged posterior: {error}") from error
    if not isinstance(posterior, Posterior | PiecewisePosterior):
        raise ValueError(f"{name!r} is a damaged posterior: it holds {posterior!r}.")
    return posterior


_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError)


def _header(members: Any, name: str) -> dict[str, Any]:
    """What the file says about itself, if it was made by :func:`save`."""
    try:
        header = json.loads(str(members["header"]))
        known = header["format"] == FORMAT
    except (KeyError, TypeError, ValueError, *_DAMAGED):
        known = False
    if not known:
        raise ValueError(f"{name!r} is not a posterior saved by probode.")
    version = header.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{name!r} is in format {version!r}, written by probode "
            f"{header.get('probode_version')}; this version ({library_version()}) reads format "
            f"{FORMAT_VERSION}. Load it with the version that wrote it, or a later one."
        )
    return header


def _encode(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The value for JSON, its arrays put aside under names such as ``posterior.path.rows.t``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | jax.Array):
        arrays[name] = np.asarray(value)
        return {"array": name}
    if isinstance(value, Problem):
        return {"class": "Problem"}  # programs cannot be stored: a loaded posterior has none
    if isinstance(value, Constraint):
        return None  # nor can the functions of invariants
    if name.endswith(".preconditioner") and callable(value):
        return None  # nor those that only a solve needs
    if _CLASSES.get(type(value).__name__) is type(value):
        fields = {
            field: _encode(getattr(value, field), f"{name}.{field}", arrays)
            for field in _field_names(value)
        }
        return {"class": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [_encode(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]
    raise TypeError(
        f"cannot save {name}, a {type(value).__name__}: a saved posterior is made of arrays and of "
        "probode's own solvers, diffusions and initialisations."
    )


def _decode(node: Any, arrays: Any) -> Any:
    """Inverse of :func:`_encode`."""
    if isinstance(node, list):
        return tuple(_decode(item, arrays) for item in node)
    if not isinstance(node, dict):
        return node
    if "array" in node:
        return arrays[node["array"]]
    name = node["class"]
    if name not in _CLASSES:
        raise ValueError(f"unknown part {name!r}.")
    fields = {key: _decode(child, arrays) for key, child in node.items() if key != "class"}
    return _CLASSES[name](**fields)


def _field_names(value: Any) -> Sequence[str]:
    if isinstance(value, tuple):
        return value._fields  # type: ignore[attr-defined]
    return [field.name for field in dataclasses.fields(value)]


def _tables(posterior: Posterior, t: Any) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Times, and means and standard deviations there, one row per time: of ``y, ..., y^(k-1)``."""
    times = np.asarray(posterior.t) if t is None else np.atleast_1d(np.asarray(t, float))
    if times.ndim != 1:
        raise ValueError(f"t must be a time or a vector of times, got shape {times.shape}.")
    shape = (times.size, int(np.prod(posterior.shape)))
    found = []
    for k in range(posterior.method.equation.order):
        at = posterior.derivative(None if t is None else times, k)
        found.append((times, np.reshape(at.mean, shape), np.reshape(at.std, shape)))
    return found


def _prefix(k: int) -> str:
    return "d" if k == 1 else f"d{k}"


def _attributes(posterior: Posterior) -> dict[str, Any]:
    """How the solution was computed and how it ended; strings and numbers, as netCDF has them."""
    solver, stats = posterior.solver, posterior.stats
    attributes = {
        "source": f"probode {library_version()}",
        "method": solver.name,
        "solver": type(solver).__name__,
        "order": solver.order,
        "diffusion": solver.diffusion.name,
        "initialization": solver.initialization.name,
        "smoothed": int(posterior.path.is_smoothed),
        "shape": str(posterior.shape),
        **{name: int(getattr(stats, name)) for name in _field_names(stats) if name != "path"},
        "path": stats.path,
        "engine": posterior.engine,
        "status": posterior.status.name,
        "message": posterior.message,
        "log_evidence": float(posterior.log_evidence),
    }
    if posterior.tolerances is not None:
        for name, value in zip(("rtol", "atol"), posterior.tolerances, strict=True):
            attributes[name] = np.asarray(value) if np.ndim(value) else float(value)
    return attributes


def library(name: str, extra: str = "export") -> Any:
    """Import an optional library, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(f"this needs {package}: pip install probode[{extra}]") from error


def library_version() -> str:
    from probode import __version__

    return __version__
