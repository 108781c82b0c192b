"""An ensemble as an xarray Dataset."""

from typing import TYPE_CHECKING, Any

import numpy as np

from probode.engines.lanes.records import COUNTS
from probode.posterior.export import DATASET_NAMES, library, library_version

if TYPE_CHECKING:
    from xarray import Dataset

    from probode.ensemble.result import Ensemble


def attributes(ensemble: "Ensemble") -> dict[str, Any]:
    """How the members were solved; strings and numbers, as files have them."""
    settings = ensemble.settings
    return {
        "source": f"probode {library_version()}",
        "method": settings.solver.name,
        "diffusion": settings.solver.diffusion.name,
        "initialization": settings.solver.initialization.name,
        "smoothed": int(settings.smooth),
        "calibration": settings.calibration,
        "shape": str(ensemble.family.shape),
    }


def to_xarray(ensemble: "Ensemble") -> "Dataset":
    """See :meth:`Ensemble.to_xarray`."""
    xarray = library("xarray")
    dims, shape = ensemble.dims, ensemble.shape
    d = int(np.prod(ensemble.family.shape, dtype=int))
    over = (*dims, "time", "state")
    table = (*shape, ensemble.family.times, d)
    variables: dict[str, Any] = {
        DATASET_NAMES["mean"]: (
            over,
            ensemble.mean.reshape(table),
            {"long_name": "posterior mean"},
        ),
        DATASET_NAMES["std"]: (
            over,
            ensemble.std.reshape(table),
            {"long_name": "posterior standard deviation"},
        ),
    }
    if ensemble.settings.covariance:
        variables[DATASET_NAMES["cov"]] = (
            (*over, "state2"),
            ensemble.cov,
            {"long_name": "posterior covariance"},
        )
    for name in ("status", *COUNTS):
        variables[name] = dims, getattr(ensemble, name)
    if ensemble.settings.calibration != "model":
        trusted = ensemble.diagnose().trusted
        words = "whether nothing speaks against the standard deviations"
        variables["trusted"] = dims, trusted, {"long_name": words}
    coords: dict[str, Any] = {**ensemble.coords, "state": np.arange(d)}
    times = ensemble.t
    if times.ndim == 1:
        coords["time"] = times
    else:
        variables["t"] = (*dims, "time"), times, {"long_name": "save points"}
    return xarray.Dataset(variables, coords, attributes(ensemble))


def to_netcdf(ensemble: "Ensemble", path: Any) -> None:
    """See :meth:`Ensemble.to_netcdf`."""
    library("netCDF4")
    to_xarray(ensemble).to_netcdf(path, engine="netcdf4")
