"""``probode fit data.csv model.py``: the parameters of a user's model from a table of data."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probode.cli.user_problems import imported
from probode.filter.control import PIControl
from probode.filter.solvers import EK1
from probode.inference.fitting import fit
from probode.inference.result import Fit

_TIMES = ("t", "time")
_NEEDED = ("f", "parameters", "y0")
_OPTIONAL = ("noise", "observe", "log_density", "t_span", "args")


class Table(NamedTuple):
    """Data as they were read."""

    t: np.ndarray
    u: np.ndarray
    """``(K, m)``; ``nan`` where a cell was empty."""
    names: list[str]


def read_table(path: Path, time: str | None, columns: list[str] | None) -> Table:
    """Times and values of a CSV file with a header."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}.")
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [(i, row) for i, row in enumerate(csv.reader(file), 1) if any(map(str.strip, row))]
    if len(rows) < 2:
        raise ValueError(f"{path} has no data: a header and at least one row are needed.")
    header = [name.strip() for name in rows[0][1]]
    if len(set(header)) < len(header):
        raise ValueError(f"{path}: names of columns must differ, got {', '.join(header)}.")
    if time is None:
        time = next((name for name in header if name.lower() in _TIMES), header[0])
    names = [name for name in header if name != time] if columns is None else columns
    for name in (time, *names):
        if name not in header:
            raise ValueError(f"{path} has no column {name!r}; it has {', '.join(header)}.")
    if not names:
        raise ValueError(f"{path} has no column besides {time!r}: there are no values to fit.")
    numbers = np.array([_numbers(path, line, row, header) for line, row in rows[1:]])
    t = numbers[:, header.index(time)]
    if np.any(np.isnan(t)):
        raise ValueError(f"{path}: the time {time!r} is missing in some row.")
    return Table(t, numbers[:, [header.index(name) for name in names]], names)


def _numbers(path: Path, line: int, row: list[str], header: list[str]) -> list[float]:
    if len(row) != len(header):
        raise ValueError(
            f"{path}, line {line}: {len(row)} cells, and the header has {len(header)}."
        )
    found = []
    for name, cell in zip(header, row, strict=True):
        try:
            found.append(float(cell) if cell.strip() else np.nan)
        except ValueError:
            raise ValueError(
                f"{path}, line {line}: {name!r} must be a number, or empty where nothing was "
                f"measured, got {cell!r}."
            ) from None
    return found


def read_model(path: Path) -> dict[str, Any]:
    """What the file of a model defines, by name."""
    try:
        module = imported(path)
    except (ValueError, OSError):
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    if missing:
        raise ValueError(
            f"{path} must define f(t, y, p), parameters and y0, and it has no "
            f"{' and no '.join(missing)}."
        )
    if not hasattr(module, "noise") and not hasattr(module, "log_density"):
        raise ValueError(
            f"{path} must define noise (the standard deviation of the data, the name of a "
            "parameter, or a function of p) or log_density(u, y, p)."
        )
    names = [*_NEEDED, *(name for name in _OPTIONAL if hasattr(module, name))]
    return {name: getattr(module, name) for name in names}


def run(table: Table, model: dict[str, Any], options: Any) -> Fit:
    """The fit, with the options of the command line."""
    return fit(
        model.pop("f"),
        (table.t, table.u),
        model.pop("parameters"),
        method=options.method,
        solver=EK1(options.order),
        control=PIControl(options.rtol, options.atol),
        starts=options.starts,
        seed=options.seed,
        **model,
    )
