"""Memory for rows that is used again: a page that is new costs the time of several steps.

An array from :func:`take` gives its memory back when it and all views of it are gone.
"""

import weakref

import numpy as np

from probode.base.spacious import spacious

SMALLEST, LARGEST = 2**12, 2**22
"""Numbers in a block: powers of two from 32 KiB to 32 MiB. What is larger is not kept."""
KEPT_BYTES = 64 * 2**20
"""How much may wait to be used again."""

_free: dict[int, list[np.ndarray]] = {}


def take(count: int) -> np.ndarray:
    """A vector of ``count`` numbers, with anything in it."""
    if count > LARGEST:
        return spacious(count)
    size = max(SMALLEST, 1 << (count - 1).bit_length())
    waiting = _free.get(size, [])
    try:
        block = waiting.pop()
    except IndexError:
        block = np.empty(size)
    # Views refer to the first array in their chain that is not itself a view of one: to this.
    array = np.frombuffer(block.data, count=count)
    weakref.finalize(array, _give_back, block).atexit = False
    return array


def _give_back(block: np.ndarray) -> None:
    if waiting_bytes() + block.nbytes <= KEPT_BYTES:
        _free.setdefault(block.size, []).append(block)


def waiting_bytes() -> int:
    """Bytes of all blocks that wait."""
    return sum(8 * size * len(blocks) for size, blocks in list(_free.items()))


def release() -> None:
    """Forget the blocks that wait."""
    _free.clear()
