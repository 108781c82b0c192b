"""Hamiltonian motion: stars, a satellite, and a galactic potential."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from probode.problems.base import InitialValueProblem, Scalar, state, with_reference


def pleiades() -> InitialValueProblem:
    """Seven stars in the plane, of masses 1 to 7, in a gravitational dance.

    ``x_i'' = sum_j m_j (x_j - x_i) / r_ij^3``, likewise for ``y``; the state is
    ``(x_1..x_7, y_1..y_7, x'_1..x'_7, y'_1..y'_7)``.
    """
    return with_reference(
        InitialValueProblem(
            name="pleiades",
            vector_field=_pleiades,
            t_span=(0.0, 3.0),
            y0=np.concatenate(
                [
                    [3.0, 3.0, -1.0, -3.0, 2.0, -2.0, 2.0],
                    [3.0, -3.0, 2.0, 0.0, 0.0, -4.0, 4.0],
                    [0.0, 0.0, 0.0, 0.0, 0.0, 1.75, -1.5],
                    [0.0, 0.0, 0.0, -1.25, 1.0, 0.0, 0.0],
                ]
            ),
            args=(np.arange(1.0, 8.0),),
            description="Seven stars in the plane with close encounters",
        ),
        np.array(_PLEIADES_END.split(), dtype=np.float64),
        "Test Set for IVP Solvers (CWI/Bari, Mazzia and Magherini), as in the R package "
        "deTestSet; PSIDE at tolerance 1e-16",
        valid=True,
    )


def _pleiades(
    t: Scalar, y: Float[Array, " 4*n"], masses: Float[Array, " n"]
) -> Float[Array, " 4*n"]:
    n = y.shape[0] // 4
    x, z = y[:n], y[n : 2 * n]
    dx = x[None, :] - x[:, None]
    dz = z[None, :] - z[:, None]
    # The ones on the diagonal keep the vanishing self-interaction from dividing by zero.
    attraction = masses / (dx**2 + dz**2 + jnp.eye(n, dtype=dx.dtype)) ** 1.5
    return jnp.concatenate(
        [y[2 * n :], jnp.sum(attraction * dx, axis=1), jnp.sum(attraction * dz, axis=1)]
    )


def three_body(mass_ratio: float = 0.012277471) -> InitialValueProblem:
    """The Arenstorf orbit: a satellite in the rotating frame of earth and moon.

    With ``m`` the moon's share of the mass, ``e = 1 - m`` and the distances ``r1`` to the earth
    at ``(-m, 0)`` and ``r2`` to the moon at ``(e, 0)``,
    ``x'' = x + 2 y' - e (x + m)/r1^3 - m (x - e)/r2^3`` and
    ``y'' = y - 2 x' - e y/r1^3 - m y/r2^3``; the state is ``(x, y, x', y')``.
    """
    problem = InitialValueProblem(
        name="three-body",
        vector_field=_three_body,
        t_span=(0.0, 17.0652165601579625588917206249),
        y0=np.array([0.994, 0.0, 0.0, -2.00158510637908252240537862224]),
        args=(mass_ratio,),
        description="Periodic Arenstorf orbit of the restricted three-body problem",
    )
    return with_reference(
        problem,
        [0.993999999999974, -8.855134620121083e-14, -1.4388667357318094e-11, -2.001585106383129],
        "Taylor series in 34-digit arithmetic from the rounded start; DOP853 (rtol 1e-13) and "
        "Radau (rtol 1e-12) agree with it to 3e-10; the orbit itself closes after the period",
        valid=mass_ratio == 0.012277471,
    )


def _three_body(t: Scalar, y: Float[Array, "4"], moon: Scalar) -> Float[Array, "4"]:
    earth = 1.0 - moon
    x, z, dx, dz = y[0], y[1], y[2], y[3]
    to_earth = earth / ((x + moon) ** 2 + z**2) ** 1.5
    to_moon = moon / ((x - earth) ** 2 + z**2) ** 1.5
    return state(
        dx,
        dz,
        x + 2.0 * dz - to_earth * (x + moon) - to_moon * (x - earth),
        z - 2.0 * dx - to_earth * z - to_moon * z,
    )


def henon_heiles(coupling: float = 1.0) -> InitialValueProblem:
    """A star in a galaxy: ``x'' = -x - 2 c x y``, ``y'' = -y - c (x^2 - y^2)``.

    The state is ``(x, y, x', y')``; the energy
    ``(x'^2 + y'^2 + x^2 + y^2)/2 + c (x^2 y - y^3/3)`` is conserved.
    """
    problem = InitialValueProblem(
        name="henon-heiles",
        vector_field=_henon_heiles,
        t_span=(0.0, 100.0),
        y0=np.array([0.0, 0.1, 0.5, 0.0]),
        args=(coupling,),
        description="Motion of a star around a galactic centre",
    )
    return with_reference(
        problem,
        [0.22514698918543194, 0.39201065358528797, 0.18818797399243553, -0.14132567096172777],
        "Taylor series in 34-digit arithmetic; DOP853 (rtol 1e-13) and Radau (rtol 1e-12) "
        "agree with it to 6e-13",
        valid=coupling == 1.0,
    )


def _henon_heiles(t: Scalar, y: Float[Array, "4"], coupling: Scalar) -> Float[Array, "4"]:
    x, z = y[0], y[1]
    return state(
        y[2],
        y[3],
        -x - 2.0 * coupling * x * z,
        -z - coupling * (x**2 - z**2),
    )


_PLEIADES_END = """
0.3706139143970502 3.237284092057233 -3.222559032418324 0.659709145577531
0.3425581707156584 1.562172101400631 -0.7003092922212495 -3.943437585517392
-3.27138097397255 5.225081843456543 -2.59061243497747 1.198213693392275
-0.2429682344935824 1.09144924042898 3.417003806314313 1.354584501625501
-2.590065597810775 2.025053734714242 -1.155815100160448 -0.8072988170223021
0.595239635420871 -3.74124496123401 0.377345968575063 0.9386858869551074
0.3667922227200571 -0.347404635380849 2.344915448180937 -1.947020434263292
"""
