"""Linear algebra in rational numbers: for constants that are rounded once, at the end."""

from collections.abc import Sequence
from fractions import Fraction


def inverse(matrix: Sequence[Sequence[Fraction]]) -> list[list[Fraction]]:
    """Inverse by Gauss-Jordan elimination, exactly."""
    n = len(matrix)
    rows = [[*row, *(Fraction(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for j in range(n):
        pivot = next(i for i in range(j, n) if rows[i][j] != 0)
        rows[j], rows[pivot] = rows[pivot], rows[j]
        rows[j] = [entry / rows[j][j] for entry in rows[j]]
        for i in range(n):
            if i != j and rows[i][j] != 0:
                rows[i] = [a - rows[i][j] * b for a, b in zip(rows[i], rows[j], strict=True)]
    return [row[n:] for row in rows]
