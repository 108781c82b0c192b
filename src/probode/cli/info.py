"""``probode info``: what is installed, what of it is used, and what the rest would bring."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import jax

from probode.base import on_disk
from probode.engines.native import library

_NEEDED = ("jax", "jaxlib", "numpy", "scipy", "jaxtyping", "threadpoolctl")
_OPTIONAL = {
    "matplotlib": ("plot", "figures"),
    "plotly": ("interactive", "figures for the mouse: plot_interactive()"),
    "xarray": ("export", "posterior.to_xarray(), to_netcdf()"),
    "netCDF4": ("export", "files in netCDF"),
    "pandas": ("export", "posterior.to_dataframe()"),
    "tqdm": ("progress", "progress bars"),
    "zarr": ("ensemble", "ensembles that are written to disk while they are computed"),
    "dask": ("dask", "ensembles on a cluster"),
    "blackjax": ("infer", "sampling of fitted parameters"),
    "arviz": ("infer", "draws as arviz.InferenceData"),
}
"""What may be installed, with the extra that brings it and what it is for."""


def gather(version: str) -> dict[str, Any]:
    """Versions, kernels, devices and what is missing, as plain values; ``version`` is our own."""
    return {
        "probode": version,
        "folder": str(Path(library.__file__).parents[2]),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "needed": {name: _version(name) for name in _NEEDED},
        "kernels": _kernels(),
        "devices": [f"{device.platform}: {device.device_kind}" for device in jax.devices()],
        "compiled programs": str(on_disk.folder() or "not kept"),
        "optional": {name: _version(name) for name in _OPTIONAL},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _kernels() -> dict[str, Any]:
    """Whether the compiled kernels are used, and if not, why and what to do."""
    in_use = library.instruction_set()
    if in_use is not None:
        return {"in use": in_use, "why": None}
    if os.environ.get("PROBODE_NATIVE") == "0":
        why = "switched off by PROBODE_NATIVE=0: unset it"
    elif not Path(library.__file__).with_name(library.LIBRARY).exists():
        why = "not built: install a wheel for this platform, or build with a C++ compiler at hand"
    elif jax.default_backend() != "cpu":
        why = f"they run on the CPU, and JAX's default device is {jax.default_backend()}"
    else:
        why = "built for another version: install again"
    return {"in use": None, "why": why}


def in_words(found: dict[str, Any]) -> str:
    """What :func:`gather` found, for people."""
    lines = [
        f"probode   {found['probode']} in {found['folder']}",
        f"Python    {found['python']} on {found['machine']}",
        f"packages  {', '.join(f'{name} {version}' for name, version in found['needed'].items())}",
        f"devices   {', '.join(found['devices'])}",
        f"cache     {found['compiled programs']}",
    ]
    kernels = found["kernels"]
    if kernels["in use"] is not None:
        lines.append(f"kernels   {kernels['in use']}")
    else:
        lines.append(f"kernels   none: {kernels['why']}")
        lines.append(
            "          Without them everything runs in JAX. The results are the same, but a first\n"
            "          call takes seconds, not a tenth of one, and each step several times as long."
        )
    installed = {name: version for name, version in found["optional"].items() if version}
    lines.append("optional  " + ", ".join(f"{name} {installed[name]}" for name in installed))
    for name in (name for name in _OPTIONAL if name not in installed):
        extra, purpose = _OPTIONAL[name]
        lines.append(f"missing   {name}: {purpose}; pip install 'probode[{extra}]'")
    return "\n".join(lines)
