"""Problems on which explicit methods are at home."""

import itertools

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import ellipj

from probode.problems.base import InitialValueProblem, Scalar, state, with_exact, with_reference


def lotka_volterra(
    alpha: float = 1.5, beta: float = 1.0, gamma: float = 3.0, delta: float = 1.0
) -> InitialValueProblem:
    """Prey and predators: ``y1' = alpha y1 - beta y1 y2``, ``y2' = -gamma y2 + delta y1 y2``."""
    args = (alpha, beta, gamma, delta)
    problem = InitialValueProblem(
        name="lotka-volterra",
        vector_field=_lotka_volterra,
        t_span=(0.0, 10.0),
        y0=np.array([1.0, 1.0]),
        args=args,
        description="Predator and prey populations on a closed orbit",
    )
    return with_reference(
        problem,
        [1.0263447675750939, 0.9096910781361162],
        "DOP853 (rtol 1e-13) and Radau (rtol 1e-12) agree to 6e-14",
        valid=args == (1.5, 1.0, 3.0, 1.0),
    )


def _lotka_volterra(
    t: Scalar,
    y: Float[Array, "2"],
    alpha: Scalar,
    beta: Scalar,
    gamma: Scalar,
    delta: Scalar,
) -> Float[Array, "2"]:
    prey, predators = y[0], y[1]
    return state(
        alpha * prey - beta * prey * predators,
        -gamma * predators + delta * prey * predators,
    )


def logistic(rate: float = 3.0, y0: float = 0.1) -> InitialValueProblem:
    """Limited growth: ``y' = rate y (1 - y)``."""

    def exact(t: ArrayLike) -> np.ndarray:
        # Written with exp(-rate t), which cannot overflow.
        t = np.asarray(t, dtype=np.float64)[..., None]
        return 1.0 / (1.0 + (1.0 / y0 - 1.0) * np.exp(-rate * t))

    problem = InitialValueProblem(
        name="logistic",
        vector_field=_logistic,
        t_span=(0.0, 2.5),
        y0=np.array([y0]),
        args=(rate,),
        description="Logistic growth towards the carrying capacity one",
    )
    return with_exact(problem, exact, "y(t) = exp(rate t) / (1/y0 - 1 + exp(rate t))")


def _logistic(t: Scalar, y: Float[Array, "1"], rate: Scalar) -> Float[Array, "1"]:
    return rate * y * (1.0 - y)


def fitzhugh_nagumo(a: float = 0.2, b: float = 0.2, c: float = 3.0) -> InitialValueProblem:
    """A spiking neuron: ``y1' = c (y1 - y1^3/3 + y2)``, ``y2' = -(y1 - a - b y2) / c``."""
    args = (a, b, c)
    problem = InitialValueProblem(
        name="fitzhugh-nagumo",
        vector_field=_fitzhugh_nagumo,
        t_span=(0.0, 20.0),
        y0=np.array([-1.0, 1.0]),
        args=args,
        description="Membrane potential and recovery variable of a spiking neuron",
    )
    return with_reference(
        problem,
        [2.0104223865517077, 0.638256940239468],
        "DOP853 (rtol 1e-13) and Radau (rtol 1e-12) agree to 1e-13",
        valid=args == (0.2, 0.2, 3.0),
    )


def _fitzhugh_nagumo(
    t: Scalar, y: Float[Array, "2"], a: Scalar, b: Scalar, c: Scalar
) -> Float[Array, "2"]:
    potential, recovery = y[0], y[1]
    return state(
        c * (potential - potential**3 / 3.0 + recovery),
        -(potential - a - b * recovery) / c,
    )


def brusselator(a: float = 1.0, b: float = 3.0) -> InitialValueProblem:
    """An oscillating reaction: ``y1' = a + y1^2 y2 - (b+1) y1``, ``y2' = b y1 - y1^2 y2``."""
    args = (a, b)
    problem = InitialValueProblem(
        name="brusselator",
        vector_field=_brusselator,
        t_span=(0.0, 10.0),
        y0=np.array([1.5, 3.0]),
        args=args,
        description="Autocatalytic chemical reaction with a limit cycle",
    )
    return with_reference(
        problem,
        [0.4135587830019656, 2.9890253794739245],
        "DOP853 (rtol 1e-13) and Radau (rtol 1e-12) agree to 5e-14",
        valid=args == (1.0, 3.0),
    )


def _brusselator(t: Scalar, y: Float[Array, "2"], a: Scalar, b: Scalar) -> Float[Array, "2"]:
    autocatalysis = y[0] ** 2 * y[1]
    return state(a + autocatalysis - (b + 1.0) * y[0], b * y[0] - autocatalysis)


def lorenz(sigma: float = 10.0, rho: float = 28.0, beta: float = 8.0 / 3.0) -> InitialValueProblem:
    """Convection rolls: ``x' = sigma (y-x)``, ``y' = x (rho-z) - y``, ``z' = x y - beta z``."""
    args = (sigma, rho, beta)
    problem = InitialValueProblem(
        name="lorenz",
        vector_field=_lorenz,
        t_span=(0.0, 10.0),
        y0=np.array([1.0, 1.0, 1.0]),
        args=args,
        description="Chaotic convection on the butterfly attractor",
    )
    return with_reference(
        problem,
        [-4.902687541134648, -3.743872921802919, 24.690858102790564],
        "Taylor series in 34-digit arithmetic; DOP853 (rtol 1e-13) and Radau (rtol 1e-12) "
        "agree with it to 3e-11",
        valid=args == (10.0, 28.0, 8.0 / 3.0),
    )


def _lorenz(
    t: Scalar, y: Float[Array, "3"], sigma: Scalar, rho: Scalar, beta: Scalar
) -> Float[Array, "3"]:
    return state(
        sigma * (y[1] - y[0]),
        y[0] * (rho - y[2]) - y[1],
        y[0] * y[1] - beta * y[2],
    )


def rigid_body(parameter: float = 0.51) -> InitialValueProblem:
    """Euler's equations of a free top: ``y1' = y2 y3``, ``y2' = -y1 y3``, ``y3' = -m y1 y2``.

    The solution from ``(0, 1, 1)`` is ``(sn, cn, dn)(t | m)``, Jacobi's elliptic functions of
    the parameter ``m`` in [0, 1].
    """
    if not 0.0 <= parameter <= 1.0:
        raise ValueError(
            f"rigid-body: expected parameter in [0, 1], received {parameter}; "
            "it is the parameter m of the elliptic functions in the solution"
        )

    def exact(t: ArrayLike) -> np.ndarray:
        sn, cn, dn, _ = ellipj(np.asarray(t, dtype=np.float64), parameter)
        return np.stack([sn, cn, dn], axis=-1)

    problem = InitialValueProblem(
        name="rigid-body",
        vector_field=_rigid_body,
        t_span=(0.0, 12.0),
        y0=np.array([0.0, 1.0, 1.0]),
        args=(parameter,),
        description="Angular momentum of a rigid body without external torque",
    )
    return with_exact(problem, exact, "y(t) = (sn, cn, dn)(t | m)")


def _rigid_body(t: Scalar, y: Float[Array, "3"], parameter: Scalar) -> Float[Array, "3"]:
    return state(y[1] * y[2], -y[0] * y[2], -parameter * y[0] * y[1])


def seir(
    contact: float = 0.4, incubation: float = 0.2, recovery: float = 0.1
) -> InitialValueProblem:
    """An epidemic among susceptible, exposed, infectious and recovered shares of a population.

    ``S' = -contact S I``, ``E' = contact S I - incubation E``,
    ``I' = incubation E - recovery I``, ``R' = recovery I``; rates per day.
    """
    args = (contact, incubation, recovery)
    problem = InitialValueProblem(
        name="seir",
        vector_field=_seir,
        t_span=(0.0, 150.0),
        y0=np.array([0.99, 0.0, 0.01, 0.0]),
        args=args,
        description="Epidemic wave through a closed population",
    )
    return with_reference(
        problem,
        [0.019618069973327483, 4.419005064302089e-06, 6.40449714158564e-05, 0.9803134660501923],
        "Taylor series in 34-digit arithmetic; DOP853 (rtol 1e-13) and Radau (rtol 1e-12) "
        "agree with it to 2e-15",
        valid=args == (0.4, 0.2, 0.1),
    )


def _seir(
    t: Scalar,
    y: Float[Array, "4"],
    contact: Scalar,
    incubation: Scalar,
    recovery: Scalar,
) -> Float[Array, "4"]:
    infections = contact * y[0] * y[2]
    onsets = incubation * y[1]
    recoveries = recovery * y[2]
    return state(-infections, infections - onsets, onsets - recoveries, recoveries)


def linear_oscillator(frequency: float = 1.0) -> InitialValueProblem:
    """The harmonic oscillator ``y1' = y2``, ``y2' = -frequency^2 y1`` from ``(1, 0)``."""

    def exact(t: ArrayLike) -> np.ndarray:
        phase = frequency * np.asarray(t, dtype=np.float64)
        return np.stack([np.cos(phase), -frequency * np.sin(phase)], axis=-1)

    problem = InitialValueProblem(
        name="linear-oscillator",
        vector_field=_linear_oscillator,
        t_span=(0.0, 10.0),
        y0=np.array([1.0, 0.0]),
        args=(frequency,),
        description="Harmonic oscillator: position and velocity",
    )
    return with_exact(problem, exact, "y(t) = (cos(frequency t), -frequency sin(frequency t))")


def _linear_oscillator(t: Scalar, y: Float[Array, "2"], frequency: Scalar) -> Float[Array, "2"]:
    return state(y[1], -(frequency**2) * y[0])


def exponential_decay(rate: float = 1.0, y0: float = 1.0) -> InitialValueProblem:
    """The scalar test equation ``y' = -rate y``."""

    def exact(t: ArrayLike) -> np.ndarray:
        return y0 * np.exp(-rate * np.asarray(t, dtype=np.float64)[..., None])

    problem = InitialValueProblem(
        name="exponential-decay",
        vector_field=_exponential_decay,
        t_span=(0.0, 5.0),
        y0=np.array([y0]),
        args=(rate,),
        description="Exponential decay, the scalar linear test equation",
    )
    return with_exact(problem, exact, "y(t) = y0 exp(-rate t)")


def _exponential_decay(t: Scalar, y: Float[Array, "1"], rate: Scalar) -> Float[Array, "1"]:
    return -rate * y


def neural(dimension: int = 4, width: int = 256, seed: int = 0) -> InitialValueProblem:
    """A neural vector field with two hidden layers: ``y' = W3 tanh(W2 tanh(W1 y + b1) + b2) + b3``.

    Weights and biases are drawn from a seeded stream and passed as arguments.
    """
    sizes = (dimension, width, width, dimension)
    # The raw stream of a bit generator never changes between NumPy versions.
    stream = np.random.PCG64(seed)

    def uniform(fan_in: int, *shape: int) -> np.ndarray:
        raw = stream.random_raw(int(np.prod(shape))).reshape(shape)
        centred = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
        return centred * np.sqrt(3.0 / fan_in)

    args: list[np.ndarray] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        args += [uniform(fan_in, fan_out, fan_in), uniform(fan_in, fan_out)]
    problem = InitialValueProblem(
        name="neural",
        vector_field=_neural,
        t_span=(0.0, 10.0),
        y0=np.linspace(-1.0, 1.0, dimension),
        args=tuple(args),
        description="Neural vector field with two hidden layers and fixed random weights",
    )
    return with_reference(
        problem,
        [-2.272620355337717, 5.047316666953397, -2.1795601493961367, -2.3307911595822985],
        "DOP853 (rtol 1e-13) and Radau (rtol 1e-12) agree to 6e-14",
        valid=(dimension, width, seed) == (4, 256, 0),
    )


def _neural(
    t: Scalar,
    y: Float[Array, " d"],
    weights1: Float[Array, "width d"],
    biases1: Float[Array, " width"],
    weights2: Float[Array, "width width"],
    biases2: Float[Array, " width"],
    weights3: Float[Array, "d width"],
    biases3: Float[Array, " d"],
) -> Float[Array, " d"]:
    hidden = jnp.tanh(weights1 @ y + biases1)
    hidden = jnp.tanh(weights2 @ hidden + biases2)
    return weights3 @ hidden + biases3
