"""Operations of a list that are alike, put together: the kernels do a group of them in one loop.

Elementwise equations on arrays leave as many operations of one kind as the array has entries. Which
of them can be done at once is found from the operations themselves, so that fields written in
components have groups too.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import sub

Operations = Mapping[int, tuple[str, tuple[int, ...]]]
"""By value: the operation and the values it reads, which have smaller numbers."""

SHORTEST = 4
"""Operations from which a loop over them is faster than one after the other."""

_LONG_RUN = 16
"""Operations from which a loop of their own is worth not having to fetch what they read."""


def batches(operations: Operations) -> Iterator[list[int]]:
    """All values, those that are read first; a batch is of one operation.

    Of the operations that can be done, that kind is next which has the longest way to go from there
    to the end; all of this kind are done with it. So a number that takes an operation more than its
    neighbours (a diagonal, a boundary) is waited for.
    """
    readers: dict[int, list[int]] = {value: [] for value in operations}
    missing: dict[int, int] = {}
    for value, (_, operands) in operations.items():
        read = {x for x in operands if x in operations}
        missing[value] = len(read)
        for x in read:
            readers[x].append(value)
    way: dict[int, int] = {}
    for value in sorted(operations, reverse=True):
        way[value] = 1 + max((way[x] for x in readers[value]), default=0)

    ready: dict[str, list[int]] = {}
    longest: dict[str, int] = {}

    def done(value: int) -> None:
        name = operations[value][0]
        ready.setdefault(name, []).append(value)
        longest[name] = max(longest.get(name, 0), way[value])

    for value, count in missing.items():
        if count == 0:
            done(value)
    while ready:
        name = max(ready, key=longest.__getitem__)
        batch = ready.pop(name)
        del longest[name]
        yield batch
        for reader in (x for value in batch for x in readers[value]):
            missing[reader] -= 1
            if missing[reader] == 0:
                done(reader)


def groups(reads: Mapping[int, tuple[int, ...]]) -> list[list[int]]:
    """A batch in pieces: long ones that read places in a row, the rest in one, or one by one.

    ``reads``: the places that each value's operation reads. The order is that of the places of one
    operand, of the one with which most operands are read in a row.
    """
    if len(reads) < SHORTEST:
        return [[value] for value in reads]
    orders = [
        sorted(reads, key=lambda value: (reads[value][first:], reads[value][:first]))
        for first in range(len(next(iter(reads.values()))))
    ]
    ordered = max(orders, key=lambda order: _in_a_row([reads[value] for value in order]))
    found, rest = [], []
    for run in _runs(ordered, reads):
        if len(run) >= _LONG_RUN:
            found.append(run)
        else:
            rest += run
    return [*found, *([rest] if len(rest) >= SHORTEST else [[value] for value in rest])]


def _in_a_row(reads: Sequence[tuple[int, ...]]) -> int:
    """How often an operand is next to that of the operation before, or the same."""
    return sum(b - a in (0, 1) for x, y in pairwise(reads) for a, b in zip(x, y, strict=True))


def _runs(ordered: Sequence[int], reads: Mapping[int, tuple[int, ...]]) -> Iterator[list[int]]:
    """Pieces in which each operand stays where it is or moves on by one."""
    run, steps = list(ordered[:1]), None
    for before, value in pairwise(ordered):
        move = tuple(map(sub, reads[value], reads[before]))
        if set(move) <= {0, 1} and steps in (None, move):
            run.append(value)
            steps = move
        else:
            yield run
            run, steps = [value], None
    yield run
