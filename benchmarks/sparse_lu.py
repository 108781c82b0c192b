"""CPU time of the sparse LU of the kernels, beside SuperLU, for matrices of grids and networks.

python -m benchmarks.sparse_lu
"""

import argparse
import time

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from benchmarks import large_problems
from probode.engines.two_pole.sparse_lu import Fronts


def grid(side: int, dimensions: int, species: int, periodic: bool) -> sp.csc_array:
    """Diffusion, and species that react with each other at each point."""
    line = sp.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(side, side)).tolil()
    if periodic:
        line[0, -1] = line[-1, 0] = 1.0
    total = 0.0
    for k in range(dimensions):
        factors = [line if j == k else sp.eye_array(side) for j in range(dimensions)]
        term = sp.eye_array(1)
        for one in factors:
            term = sp.kron(term, one)
        total = total + term
    jacobian = sp.kron(total, sp.eye_array(species))
    if species == 2:
        reaction = np.array([[-1.0, 2.0], [-1.5, -1.0]])
        jacobian = jacobian + sp.kron(sp.eye_array(side**dimensions), reaction)
    return sp.csc_array(sp.eye_array(jacobian.shape[0]) - 3.0 * jacobian)


def network(size: int) -> sp.csc_array:
    """Of reactions of mass action, with random rates."""
    pattern = large_problems.get("network", size).sparsity
    values = 0.01 * np.random.default_rng(0).normal(size=pattern.nnz)
    matrix = sp.csc_array((values, pattern.indices, pattern.indptr), shape=pattern.shape)
    return sp.csc_array(matrix + sp.eye_array(size))


CASES = {
    "two species on a torus": [(grid, side, 2, 2, True) for side in (22, 71, 158)],
    "one on a square": [(grid, 100, 2, 1, False)],
    "two species in a cube, periodic": [(grid, 17, 3, 2, True)],
    "one in a cube": [(grid, 22, 3, 1, False)],
    "network of reactions": [(network, 300), (network, 1000)],
}


def milliseconds(run, repeats: int) -> float:
    """The shortest of several runs."""
    found = []
    for _ in range(repeats):
        begun = time.process_time()
        run()
        found.append(time.process_time() - begun)
    return 1e3 * min(found)


def row(name: str, matrix: sp.csc_array, repeats: int) -> str:
    """SuperLU gets its order beforehand, too."""
    d, options = matrix.shape[0], {"SymmetricMode": True, "Equil": False}
    order = np.argsort(
        splu(matrix, "MMD_AT_PLUS_A", diag_pivot_thresh=0.01, options=options).perm_c
    )
    ordered = sp.csc_array(matrix[order][:, order])

    def by_superlu():
        return splu(ordered, "NATURAL", diag_pivot_thresh=0.01, options=options)

    plan, b, superlu = Fronts.of(matrix), np.linspace(1.0, 2.0, d), by_superlu()
    fronts = plan.factorised(matrix.data)
    assert fronts is not None
    np.testing.assert_allclose(matrix @ fronts(b), b, atol=1e-9)
    times = [
        milliseconds(run, repeats)
        for run in (
            by_superlu,
            lambda: plan.factorised(matrix.data),
            lambda: superlu.solve(b),
            lambda: fronts(b),
        )
    ]
    return f"| {name} | {d} | " + " | ".join(f"{x:.3g}" for x in times) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print("| matrix | d | SuperLU, ms | fronts | solve, SuperLU | fronts |")
    print("|" + "---|" * 6)
    for name, cases in CASES.items():
        for make, *given in cases:
            matrix = make(*given)
            matrix.sort_indices()
            print(row(name, matrix, options.repeats), flush=True)


if __name__ == "__main__":
    main()
