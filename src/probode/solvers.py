"""The solvers: a linearisation, a prior, a diffusion model, a start."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from probode.diffusion import Diffusion, as_diffusion
from probode.errors import check_choice
from probode.initial import Initialization, as_initialization
from probode.prior import IWP
from probode.step import Method
from probode.structure import STRUCTURES

DENSE_LIMIT_BYTES = 2**30
"""Above this size of the matrix that one step decomposes, a dense covariance is refused.

A chunk of steps keeps a few such matrices besides the one that is decomposed.
"""


@dataclass(frozen=True)
class Solver:
    """A Gaussian ODE filter (and smoother).

    Parameters
    ----------
    order
        Order ``q`` of the integrated Wiener process prior, 1 to 11 (or an :class:`IWP`). At order
        11 rounding can spoil the smoother at loose tolerances, where some of the first steps are
        short compared with the next ones; its standard deviations then are as large as its errors.
    diffusion
        ``"dynamic"``, ``"dynamic-mv"``, ``"fixed"``, ``"fixed-mv"`` (those of the paper),
        ``"damped"``, ``"damped-mv"`` (dynamic ones that remember), or a diffusion object.
    initialization
        ``"taylor"``, ``"runge-kutta"``, ``"diffuse"``, or an initialisation object.
    structure
        How covariances are stored: by default the smallest form that holds them. Any of
        ``"isotropic"``, ``"block-diagonal"``, ``"dense"`` that is large enough may be asked for.
    """

    order: int = 5
    diffusion: Diffusion = field(default="dynamic")  # type: ignore[assignment]
    initialization: Initialization = field(default="taylor", kw_only=True)  # type: ignore[assignment]
    structure: str | None = field(default=None, kw_only=True)

    jacobian: ClassVar[str]
    evaluations: ClassVar[int] = 1

    def __post_init__(self) -> None:
        prior = self.order if isinstance(self.order, IWP) else IWP(self.order)
        object.__setattr__(self, "order", prior.order)
        object.__setattr__(self, "diffusion", as_diffusion(self.diffusion))
        object.__setattr__(self, "initialization", as_initialization(self.initialization))
        self._check_diffusion()
        if self.structure is not None:
            check_choice("structure", self.structure, tuple(STRUCTURES))
            possible = self._structures()
            if self.structure not in possible:
                raise ValueError(
                    f"{type(self).__name__} with {self.diffusion.name!r} diffusion does not fit a "
                    f"structure of {self.structure!r}: use one of {', '.join(possible)}."
                )

    def _check_diffusion(self) -> None:
        pass

    def _structures(self) -> tuple[str, ...]:
        """Structures that can hold this solver's covariance, the smallest first."""
        raise NotImplementedError

    @property
    def prior(self) -> IWP:
        """The prior of the solver."""
        return IWP(self.order)

    @property
    def name(self) -> str:
        """The solver in a few letters, such as ``EK1(5)``."""
        return f"{type(self).__name__}({self.order})"

    def method(self, d: int) -> Method:
        """What the engine runs for a problem of dimension ``d``."""
        structure = self.structure or self._structures()[0]
        n = self.order + 1
        if structure == "dense" and 16 * (n * d) ** 2 > DENSE_LIMIT_BYTES:
            raise ValueError(
                f"{self.name} on {d} components needs a dense covariance of ({n * d}, {n * d}), "
                f"{8 * (n * d) ** 2 / 2**30:.1f} GiB, decomposed in every step. Use EK0 (cost "
                "linear in the dimension) or, for a dominant diagonal of the Jacobian, DiagonalEK1."
            )
        return Method(
            self.prior, STRUCTURES[structure](n, d), self.jacobian, self.diffusion, self.evaluations
        )


@dataclass(frozen=True)
class EK0(Solver):
    """Zeroth-order linearisation: explicit, no Jacobian, cost and memory linear in the dimension.

    For non-stiff problems. With one evaluation of ``f`` in a step it is stable, on ``y' = λ y``,
    for ``h |λ|`` up to 1 (order 1), 0.41, 0.17, 0.07 and 0.028 (order 5), and above order 5 its
    steps are limited by that at every tolerance. A second evaluation, where the first has corrected
    y, makes that 2, 1.7, 1.2, 0.76, 0.50 (order 5), 0.33, 0.21, and 0.15 (order 8), and the error
    of a step several times smaller: recommended, unless it is the filter of the literature that is
    wanted.

    Parameters
    ----------
    evaluations
        Evaluations of ``f`` in an accepted step, 1 or 2. The second is an iteration of the filter:
        it corrects the mean; covariances and error estimates follow from the first.
    """

    jacobian: ClassVar[str] = "none"
    evaluations: int = field(default=1, kw_only=True)  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.evaluations, bool) or self.evaluations not in (1, 2):
            raise ValueError(
                f"evaluations must be 1 or 2 (of f in a step), got {self.evaluations!r}: a third "
                "was found not to help."
            )

    @property
    def name(self) -> str:
        return super().name + ("x2" if self.evaluations == 2 else "")

    def _structures(self) -> tuple[str, ...]:
        # A fixed diagonal diffusion is a factor on the outside: C ⊗ diag(γ).
        if self.diffusion.varies_by_component:
            return ("block-diagonal", "dense")
        return tuple(STRUCTURES)


@dataclass(frozen=True)
class DiagonalEK1(Solver):
    """First-order linearisation with the Jacobian's diagonal: semi-implicit, cost linear in d."""

    jacobian: ClassVar[str] = "diagonal"

    def _structures(self) -> tuple[str, ...]:
        return ("block-diagonal", "dense")


@dataclass(frozen=True)
class EK1(Solver):
    """First-order linearisation with the full Jacobian: A-stable, for stiff and small problems.

    The posterior covariance couples all components, and its cost grows with the cube of
    ``(order + 1) d``.
    """

    jacobian: ClassVar[str] = "full"

    def _check_diffusion(self) -> None:
        if self.diffusion.multivariate:
            scalar = self.diffusion.name.removesuffix("-mv")
            raise ValueError(
                f"diffusion={self.diffusion.name!r} is not defined for EK1, whose Jacobian couples "
                f"the components. Use diffusion={scalar!r}, or DiagonalEK1 or EK0 with "
                f"{self.diffusion.name!r}."
            )

    def _structures(self) -> tuple[str, ...]:
        return ("dense",)


def with_start(solver: Solver, done: Initialization) -> Solver:
    """The solver with the start that was made: it is another one where derivatives fail."""
    if solver.initialization == done:
        return solver
    return replace(solver, initialization=done)


def build(
    kind: type[Solver], order: int, diffusion: Any, evaluations: int | None = None, **rest: Any
) -> Solver:
    """A solver of a kind; ``evaluations`` are EK0's alone, ``None`` stands for the default."""
    if evaluations is None:
        return kind(order, diffusion, **rest)
    if issubclass(kind, EK0):
        return kind(order, diffusion, evaluations=evaluations, **rest)
    if evaluations != 1:
        raise ValueError(
            f"evaluations={evaluations!r} is for EK0, got {kind.__name__}: where a Jacobian is "
            "known, a second evaluation in a step was found not to help."
        )
    return kind(order, diffusion, **rest)
