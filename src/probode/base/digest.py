"""What results depend on, in short: digests by name, to tell whether stored ones are the same."""

import hashlib
from typing import Any

import numpy as np

MARK = "blake2b:"


def digest(*parts: Any) -> str:
    """Of texts, bytes, numbers and arrays; the same in every process."""
    content = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, bytes):
            content.update(part)
        elif isinstance(part, str):
            content.update(part.encode())
        elif isinstance(part, bool | int | float | np.generic) or hasattr(part, "dtype"):
            array = np.asarray(part)
            content.update(repr((array.dtype.str, array.shape)).encode())
            content.update(array.tobytes())
        else:  # any other parameter shapes the trace, which is compared with the function
            content.update(type(part).__qualname__.encode())
    return MARK + content.hexdigest()


def differences(stored: dict[str, str], now: dict[str, str]) -> list[str]:
    """What differs, in words; values that are digests are not worth showing."""
    found = []
    for name, value in now.items():
        before = stored.get(name)
        if before != value:
            shown = before is None or MARK in (before[: len(MARK)], value[: len(MARK)])
            found.append(name if shown else f"{name} (stored: {before}, now: {value})")
    return found
