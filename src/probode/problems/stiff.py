"""Problems on which explicit methods are limited by stability."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from numpy.typing import ArrayLike

from probode.problems.base import InitialValueProblem, Scalar, state, with_exact, with_reference

_TEST_SET = (
    "Test Set for IVP Solvers (CWI/Bari, Mazzia and Magherini), as in the R package deTestSet"
)


def van_der_pol(mu: float = 1e6, y0: Sequence[float] = (2.0, 0.0)) -> InitialValueProblem:
    """A relaxation oscillator, scaled: ``y1' = y2``, ``y2' = mu ((1 - y1^2) y2 - y1)``.

    Reference values are known for ``mu = 1e6`` from ``(2, 0)`` and from ``(0, sqrt(3))``.
    """
    start = tuple(float(component) for component in y0)
    problem = InitialValueProblem(
        name="van-der-pol",
        vector_field=_van_der_pol,
        t_span=(0.0, 6.3),
        y0=np.array(start),
        args=(mu,),
        description="Relaxation oscillations with layers of width 1/mu",
        stiff=True,
    )
    if start == (0.0, math.sqrt(3.0)):
        return with_reference(
            problem,
            [1.8593111603641552, -0.756728470807009],
            "Radau (rtol 1e-12) and Radau (rtol 1e-10) agree to 4e-13",
            valid=mu == 1e6,
        )
    return with_reference(
        problem,
        [-1.4196008495253496, 1.398250270925971],
        "Radau (rtol 1e-12) and Radau (rtol 1e-10) agree to 2e-12",
        valid=start == (2.0, 0.0) and mu == 1e6,
    )


def _van_der_pol(t: Scalar, y: Float[Array, "2"], mu: Scalar) -> Float[Array, "2"]:
    return state(y[1], mu * ((1.0 - y[0] ** 2) * y[1] - y[0]))


def van_der_pol_bari(mu: float = 1000.0) -> InitialValueProblem:
    """The relaxation oscillator, unscaled: ``y1' = y2``, ``y2' = mu (1 - y1^2) y2 - y1``."""
    problem = InitialValueProblem(
        name="van-der-pol-bari",
        vector_field=_van_der_pol_bari,
        t_span=(0.0, 2000.0),
        y0=np.array([2.0, 0.0]),
        args=(mu,),
        description="Relaxation oscillations, in the form of the Bari test set",
        stiff=True,
    )
    return with_reference(
        problem, [1.706167732170469, -0.0008928097010248125], _TEST_SET, valid=mu == 1000.0
    )


def _van_der_pol_bari(t: Scalar, y: Float[Array, "2"], mu: Scalar) -> Float[Array, "2"]:
    return state(y[1], mu * (1.0 - y[0] ** 2) * y[1] - y[0])


def hires() -> InitialValueProblem:
    """High irradiance response: eight reactants of a plant's photomorphogenesis."""
    return with_reference(
        InitialValueProblem(
            name="hires",
            vector_field=_hires,
            t_span=(0.0, 321.8122),
            y0=np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0057]),
            description="Eight reactants in the high irradiance response of plants",
            stiff=True,
        ),
        [
            *(0.0007371312573325668, 0.0001442485726316185, 5.888729740967575e-05),
            *(0.001175651343283149, 0.002386356198831331, 0.006238968252742796),
            *(0.002849998395185769, 0.002850001604814231),
        ],
        f"{_TEST_SET}; RADAU5 at tolerance 1.1e-18",
        valid=True,
    )


def _hires(t: Scalar, y: Float[Array, "8"]) -> Float[Array, "8"]:
    binding = 280.0 * y[5] * y[7]
    return state(
        -1.71 * y[0] + 0.43 * y[1] + 8.32 * y[2] + 0.0007,
        1.71 * y[0] - 8.75 * y[1],
        -10.03 * y[2] + 0.43 * y[3] + 0.035 * y[4],
        8.32 * y[1] + 1.71 * y[2] - 1.12 * y[3],
        -1.745 * y[4] + 0.43 * (y[5] + y[6]),
        -binding + 0.69 * y[3] + 1.71 * y[4] - 0.43 * y[5] + 0.69 * y[6],
        binding - 1.81 * y[6],
        -binding + 1.81 * y[6],
    )


def rober(k1: float = 0.04, k2: float = 3e7, k3: float = 1e4) -> InitialValueProblem:
    """Robertson's reaction over eleven decades of time.

    ``y1' = -k1 y1 + k3 y2 y3``, ``y2' = k1 y1 - k3 y2 y3 - k2 y2^2``, ``y3' = k2 y2^2``.
    """
    args = (k1, k2, k3)
    problem = InitialValueProblem(
        name="rober",
        vector_field=_rober,
        t_span=(0.0, 1e11),
        y0=np.array([1.0, 0.0, 0.0]),
        args=args,
        description="Robertson's autocatalytic reaction over eleven decades of time",
        stiff=True,
    )
    return with_reference(
        problem,
        [2.083340149701255e-08, 8.333360770334713e-14, 0.999999979166505],
        _TEST_SET,
        valid=args == (0.04, 3e7, 1e4),
    )


def _rober(
    t: Scalar, y: Float[Array, "3"], k1: Scalar, k2: Scalar, k3: Scalar
) -> Float[Array, "3"]:
    slow = k1 * y[0]
    fast = k2 * y[1] ** 2
    back = k3 * y[1] * y[2]
    return state(-slow + back, slow - back - fast, fast)


def orego(s: float = 77.27, q: float = 8.375e-6, w: float = 0.161) -> InitialValueProblem:
    """The Oregonator model of the Belousov-Zhabotinskii reaction.

    ``y1' = s (y2 + y1 (1 - q y1 - y2))``, ``y2' = (y3 - (1 + y1) y2) / s``, ``y3' = w (y1 - y3)``.
    """
    args = (s, q, w)
    problem = InitialValueProblem(
        name="orego",
        vector_field=_orego,
        t_span=(0.0, 360.0),
        y0=np.array([1.0, 2.0, 3.0]),
        args=args,
        description="Oregonator: chemical oscillations over five orders of magnitude",
        stiff=True,
    )
    return with_reference(
        problem,
        [1.000814870318523, 1228.178521549917, 132.0554942846706],
        _TEST_SET,
        valid=args == (77.27, 8.375e-6, 0.161),
    )


def _orego(t: Scalar, y: Float[Array, "3"], s: Scalar, q: Scalar, w: Scalar) -> Float[Array, "3"]:
    return state(
        s * (y[1] + y[0] * (1.0 - q * y[0] - y[1])),
        (y[2] - (1.0 + y[0]) * y[1]) / s,
        w * (y[0] - y[2]),
    )


def prothero_robinson(rate: float = 1e6, y0: float = 1.0) -> InitialValueProblem:
    """A stiff linear equation with a smooth solution: ``y' = -rate (y - cos t) - sin t``."""

    def exact(t: ArrayLike) -> np.ndarray:
        t = np.asarray(t, dtype=np.float64)[..., None]
        return np.cos(t) + (y0 - 1.0) * np.exp(-rate * t)

    problem = InitialValueProblem(
        name="prothero-robinson",
        vector_field=_prothero_robinson,
        t_span=(0.0, 10.0),
        y0=np.array([y0]),
        args=(rate,),
        description="Stiff linear equation that attracts to the cosine",
        stiff=True,
    )
    return with_exact(problem, exact, "y(t) = cos(t) + (y0 - 1) exp(-rate t)")


def _prothero_robinson(t: Scalar, y: Float[Array, "1"], rate: Scalar) -> Float[Array, "1"]:
    return -rate * (y - jnp.cos(t)) - jnp.sin(t)


def reaction_diffusion(
    n: int = 100, diffusion: float = 1.0, growth: float = 1.0, length: float = 10.0
) -> InitialValueProblem:
    """The Fisher-KPP equation ``u_t = diffusion u_xx + growth u (1 - u)`` by the method of lines.

    ``u`` lives on ``n`` cell centres of ``[0, length]`` with no flux through the ends, and starts
    as ``exp(-x^2)``: a population that invades from the left. The stiffness grows like
    ``diffusion (n / length)^2``.
    """
    if n < 2:
        raise ValueError(f"reaction-diffusion: expected n >= 2, received {n}; use more grid points")
    width = length / n
    centres = (np.arange(n) + 0.5) * width
    problem = InitialValueProblem(
        name="reaction-diffusion",
        vector_field=_reaction_diffusion,
        t_span=(0.0, 5.0),
        y0=np.exp(-(centres**2)),
        args=(diffusion / width**2, growth),
        description="Fisher-KPP wave of a population that invades an interval",
        stiff=True,
    )
    return with_reference(
        problem,
        np.array(_REACTION_DIFFUSION_END.split(), dtype=np.float64),
        "DOP853 (rtol 1e-13, steps at most 0.005) and Radau (rtol 1e-13) agree to 2e-15",
        valid=(n, diffusion, growth, length) == (100, 1.0, 1.0, 10.0),
    )


def _reaction_diffusion(
    t: Scalar, y: Float[Array, " n"], exchange: Scalar, growth: Scalar
) -> Float[Array, " n"]:
    flux = exchange * (y[1:] - y[:-1])
    wall = jnp.zeros_like(y[:1])
    net_inflow = jnp.concatenate([flux, wall]) - jnp.concatenate([wall, flux])
    return net_inflow + growth * y * (1.0 - y)


_REACTION_DIFFUSION_END = """
0.9526208223442268 0.9524927538105131 0.9522363720683508 0.9518511878970839
0.9513364677922462 0.9506912343698873 0.9499142669266091 0.9490041021732997
0.9479590351652136 0.9467771204557057 0.9454561735056884 0.9439937723857554
0.9423872598127978 0.9406337455680573 0.9387301093485803 0.9366730041093275
0.93445885995842 0.9320838886733306 0.9295440889112148 0.9268352521918983
0.9239529697373452 0.9208926402566882 0.917649478770902 0.9142185265761258
0.9105946624491176 0.9067726152025394 0.9027469777013813 0.8985122224549154
0.8940627189008352 0.8893927524996403 0.8844965457576568 0.8793682812961882
0.8740021270819577 0.8683922639300411 0.8625329153847092 0.8564183800757229
0.8500430666374789 0.8434015312657407 0.836488517971248 0.8292990015711531
0.8218282334376192 0.8140717899980475 0.8060256239529388 0.7976861181453444
0.7890501419801041 0.7801151102516211 0.7708790441957837 0.7613406345351265
0.7514993062363959 0.7413552846470262 0.730909662621802 0.7201644681940184
0.7091227322872881 0.6977885559057978 0.6861671761831988 0.6742650306145659
0.6620898187433397 0.649650560527081 0.6369576505638997 0.6240229073269198
0.6108596165287687 0.5974825677234707 0.5839080832505477 0.5701540386373376
0.556239873601411 0.5421865928368439 0.5280167558264862 0.513754454997806
0.4994252816323705 0.4850562790480908 0.4706758826982048 0.456313846970158
0.44200115861926714 0.4277699369339931 0.4136533208989595 0.39968534379555065
0.3859007958543932 0.3723350757457865 0.35902403185935783 0.3460037944792876
0.3333106001027946 0.32098060927403566 0.30904971941035786 0.29755337418073113
0.28652637105557716 0.2760026686822243 0.266015195750681 0.2565956630009436
0.24777437998687724 0.23958007815475355 0.23203974171923292 0.22517844772868464
0.21901921660835916 0.21358287435712783 0.20888792745429838 0.20495045141023954
0.2017839937705112 0.19939949225992748 0.19780520863175083 0.1970066786689096
"""
