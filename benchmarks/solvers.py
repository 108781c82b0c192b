"""The solvers that take part, and on which kinds of problem; their settings are in `adapters`."""

import dataclasses
import importlib.metadata
import importlib.util
import re

from benchmarks import adapters


@dataclasses.dataclass(frozen=True)
class Solver:
    """How a solver is named, and how it is run."""

    name: str
    family: str
    build: adapters.Build
    kinds: tuple[str, ...]
    """The kinds of problem it is meant for."""
    counterpart: str = ""
    """Our solver of the same method and order, final state only."""

    @property
    def package(self) -> str:
        """What must be installed."""
        return _PACKAGES[self.family]

    def available(self) -> bool:
        """Whether it can be imported."""
        return importlib.util.find_spec(_MODULES[self.family]) is not None


_PACKAGES = {
    "probode": "probode",
    "smoother": "probode",
    "probdiffeq": "probdiffeq",
    "diffrax": "diffrax",
    "SciPy": "scipy",
    "CVODE": "scikit-sundae",
}
_MODULES = {**_PACKAGES, "CVODE": "sksundae"}
FAMILIES = tuple(_PACKAGES)


_ANY, _EXPLICIT = ("non-stiff", "stiff"), ("non-stiff", "large")
_OURS = (("EK0", 3), ("EK0", 5), ("EK1", 3), ("EK1", 5), ("EK1", 8))
_OURS_ALONE = (("EK0x2", 3), ("EK0x2", 5), ("EK0x2", 7))
"""Without a peer of the same method."""


def _all() -> list[Solver]:
    solvers = [Solver("probode auto", "probode", adapters.ours_chosen(), (*_ANY, "large"))]
    for method, order in (*_OURS, *_OURS_ALONE):
        kinds = _ANY if method == "EK1" else _EXPLICIT
        name = f"{method}({order})" if method != "EK0x2" else f"EK0({order})x2"
        same = f"probode {name}"
        # All steps of a large problem would be gigabytes.
        small = tuple(kind for kind in kinds if kind != "large")
        smoother = adapters.our_smoother(method, order)
        solvers += [
            Solver(same, "probode", adapters.ours(method, order), kinds),
            Solver(f"{same} smoother", "smoother", smoother, small, same),
        ]
        if (method, order) in _OURS:
            peer = adapters.probdiffeq(method, order)
            solvers.append(Solver(f"probdiffeq {name}", "probdiffeq", peer, kinds, same))
    for method in ("Tsit5", "Dopri5", "Dopri8"):
        solvers.append(Solver(f"diffrax {method}", "diffrax", adapters.diffrax(method), _EXPLICIT))
    solvers.append(Solver("diffrax Kvaerno5", "diffrax", adapters.diffrax("Kvaerno5"), _ANY))
    newton = adapters.diffrax("Kvaerno5", newton=True)
    solvers.append(Solver("diffrax Kvaerno5 Newton", "diffrax", newton, ("stiff",)))
    for method in ("RK45", "DOP853"):
        solvers.append(Solver(f"SciPy {method}", "SciPy", adapters.scipy(method), _EXPLICIT))
    for method in ("LSODA", "Radau"):
        solvers.append(Solver(f"SciPy {method}", "SciPy", adapters.scipy(method), _ANY))
    solvers.append(Solver("CVODE Adams", "CVODE", adapters.cvode("Adams"), _EXPLICIT))
    solvers.append(Solver("CVODE BDF", "CVODE", adapters.cvode("BDF"), _ANY))
    return sorted(solvers, key=lambda solver: FAMILIES.index(solver.family))


SOLVERS = {solver.name: solver for solver in _all()}
_NOT_QUICK = r"EK[01]\(3\)|EK0\(7\)|EK1\(8\) smoother|x2 smoother|Dopri5|RK45|Radau"
QUICK = tuple(name for name in SOLVERS if not re.search(_NOT_QUICK, name))
QUICK_FIRST = re.compile(r"EK[01]\(5\)$|Tsit5|Kvaerno5$|LSODA|BDF")
"""Solvers whose first call a quick run times."""


def select(patterns: list[str]) -> list[Solver]:
    """Solvers whose name contains one of these (ignoring case); all where there is none."""
    chosen = [
        solver
        for name, solver in SOLVERS.items()
        if not patterns or any(pattern.lower() in name.lower() for pattern in patterns)
    ]
    if not chosen:
        raise ValueError(f"no solver matches {patterns}; there are: {', '.join(SOLVERS)}.")
    return chosen


def versions() -> dict[str, str]:
    """What is installed, by package."""
    found = {}
    for package in sorted({*_PACKAGES.values(), "jax", "jaxlib", "numpy", "equinox"}):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
