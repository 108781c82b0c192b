"""Results on disk, one file per configuration, so that an interrupted run goes on."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import probode

Values = dict[str, Any]

_OUTSIDE = (
    *("cli", "ivp", "engines/in_python", "engines/progress", "programs/tracing"),
    *(f"posterior/{name}" for name in ("curves", "display", "events", "export", "plotting")),
)
"""Beginnings of the paths of modules that no result depends on; of those here these matter:"""
_INSIDE = ("settings", "reference", "measure")


@dataclass(frozen=True)
class Configuration:
    """What determines a result: an experiment and its settings (plain JSON values)."""

    experiment: str
    settings: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(experiment: str, **settings: Any) -> "Configuration":
        """From keyword arguments."""
        return Configuration(experiment, tuple(settings.items()))

    def __getitem__(self, name: str) -> Any:
        return dict(self.settings)[name]


@dataclass(frozen=True)
class Cache:
    """A folder of results, each named after a hash of what determines it.

    That is: the configuration, the version and the source of the solvers, and the source of the
    experiment. Changing a figure or the report recomputes nothing.
    """

    folder: Path

    def path(self, configuration: Configuration) -> Path:
        """Where the result of a configuration is, or will be."""
        text = json.dumps([configuration.experiment, dict(configuration.settings)], sort_keys=True)
        key = hashlib.sha256((text + fingerprint(configuration.experiment)).encode()).hexdigest()
        return self.folder / f"{configuration.experiment}-{key[:20]}.json"

    def load(self, configuration: Configuration) -> Values | None:
        """The result, or None; a damaged file counts as none."""
        try:
            stored = json.loads(self.path(configuration).read_text(encoding="utf-8"))
            return stored["values"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store(self, configuration: Configuration, values: Values) -> None:
        """Write a result: whole, or not at all."""
        path = self.path(configuration)
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part")
        content = {"settings": dict(configuration.settings), "values": values}
        partial.write_text(json.dumps(content), encoding="utf-8")
        partial.replace(path)

    def get(
        self, configuration: Configuration, compute: Callable[[Configuration], Values]
    ) -> Values:
        """The stored result, or a new one."""
        found = self.load(configuration)
        if found is None:
            self.store(configuration, compute(configuration))
            # Read back, so that a first run and a later one see the same values.
            found = self.load(configuration)
            assert found is not None
        return found


@lru_cache
def fingerprint(experiment: str) -> str:
    """Hash of the version and the source that a result of this experiment depends on."""
    root = Path(probode.__file__).parent
    digest = hashlib.sha256(probode.__version__.encode())
    for path in sorted(root.rglob("*.py")):
        if not path.relative_to(root).as_posix().startswith(_OUTSIDE):
            digest.update(path.read_bytes())
    for name in sorted({*_INSIDE, experiment.replace("-", "_")}):
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()
