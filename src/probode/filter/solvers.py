"""The solvers: a linearisation, a prior, a diffusion model, a start."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from probode.base.errors import check_choice
from probode.filter.start import (
    Initialization,
    RungeKuttaStart,
    TaylorStart,
    as_initialization,
)
from probode.filter.step import Method
from probode.model.diffusion import Diffusion, as_diffusion
from probode.model.equation import FIRST_ORDER, Equation
from probode.model.ioup import IOUP
from probode.model.parts import Part
from probode.model.prior import IWP, MAX_ORDER, Prior, check_prior
from probode.model.structure import STRUCTURES
from probode.model.two_pole import HIGHEST
from probode.programs.field import Field


def _checked(prior: Prior) -> Prior:
    """A prior of a user's own is looked at before any step."""
    return prior if type(prior) is IOUP else check_prior(prior)


ERRORS = ("residual", "correction")
"""What steps of EK1 can be judged by."""

DENSE_LIMIT_BYTES = 2**30
"""Above this size of the matrix that one step decomposes, a dense covariance is refused.

A chunk of steps keeps a few such matrices besides the one that is decomposed.
"""


@dataclass(frozen=True, repr=False)
class Solver(Part):
    """A Gaussian ODE filter (and smoother).

    Parameters
    ----------
    order
        Order ``q`` of the integrated Wiener process prior, 1 to 11, or a prior: :class:`IWP`,
        :class:`Matern`, :class:`IOUP`, or one of your own (:class:`Prior`). At order 11 rounding
        can spoil the smoother at loose tolerances, where some of the first steps are short
        compared with the next ones; its standard deviations then are as large as its errors.
    diffusion
        ``"dynamic"``, ``"dynamic-mv"``, ``"fixed"``, ``"fixed-mv"`` (those of the paper),
        ``"damped"``, ``"damped-mv"`` (dynamic ones that remember), or a diffusion object.
    initialization
        ``"taylor"``, ``"runge-kutta"``, ``"diffuse"``, or an initialisation object.
    structure
        How covariances are stored: by default the smallest form that holds them. Any of
        ``"isotropic"``, ``"block-diagonal"``, ``"dense"`` that is large enough may be asked for.
        A prior that differs by component, or mixes them, makes the default larger.
    """

    order: int = 5
    diffusion: Diffusion = field(default="dynamic")  # type: ignore[assignment]
    initialization: Initialization = field(default="taylor", kw_only=True)  # type: ignore[assignment]
    structure: str | None = field(default=None, kw_only=True)
    prior: Prior = field(default=None, kw_only=True)  # type: ignore[assignment]
    """The prior; that of ``order``, unless one was given in its place."""

    jacobian: ClassVar[str]
    evaluations: ClassVar[int] = 1
    smooths: ClassVar[bool] = True
    """Whether there is a smoother, and with it joint samples."""

    def __post_init__(self) -> None:
        prior: Prior = self._read_prior()
        object.__setattr__(self, "order", prior.order)
        object.__setattr__(self, "prior", prior)
        object.__setattr__(self, "diffusion", as_diffusion(self.diffusion))
        object.__setattr__(self, "initialization", as_initialization(self.initialization))
        self._check_diffusion()
        possible = self._fitting()
        if not possible:
            raise ValueError(
                f"diffusion={self.diffusion.name!r} has a noise for each component, which "
                f"{self.prior!r} mixes: use diffusion={self.diffusion.name.removesuffix('-mv')!r}, "
                "or a rate that is a number or an array (d,)."
            )
        if self.structure is not None:
            check_choice("structure", self.structure, tuple(STRUCTURES))
            if self.structure not in possible:
                under = "" if type(self.prior) is IWP else f" and {self.prior!r}"
                raise ValueError(
                    f"{type(self).__name__} with {self.diffusion.name!r} diffusion{under} does not "
                    f"fit a structure of {self.structure!r}: use one of {', '.join(possible)}."
                )

    def __repr__(self) -> str:
        """As it is written: with the order, or with a prior in its place."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "prior"}
        if type(self.prior) is not IWP:
            given["order"] = self.prior
        inside = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"{type(self).__name__}({inside})"

    def _read_prior(self) -> Prior:
        if isinstance(self.order, Prior):
            return _checked(self.order)
        if not isinstance(self.order, int | np.integer):
            raise TypeError(
                f"order must be an integer from 1 to {MAX_ORDER}, or a prior such as "
                f"Matern(3, lengthscale=1.0), got {self.order!r}."
            )
        if self.prior is not None and not isinstance(self.prior, Prior):
            raise TypeError(f"prior must be a prior such as IWP(3), got {self.prior!r}.")
        if self.prior is None or type(self.prior) is IWP:  # which its order says all about
            return IWP(self.order)
        if self.order != _checked(self.prior).order:
            raise ValueError(
                f"order={self.order!r} and prior={self.prior!r} contradict each other: give the "
                f"prior alone, {type(self).__name__}({self.prior!r})."
            )
        return self.prior

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickles of versions without other priors have none.
        super().__setstate__({"prior": IWP(state["order"]), **state})

    def _check_diffusion(self) -> None:
        pass

    def _structures(self) -> tuple[str, ...]:
        """Structures that can hold this solver's covariance, the smallest first."""
        raise NotImplementedError

    def _fitting(self) -> tuple[str, ...]:
        """Those that can hold what the prior does with it, too."""
        prior, separate = self.prior, self.diffusion.multivariate
        fitting = [
            name
            for name in self._structures()
            if STRUCTURES[name].widest_block >= prior.widest
            and not (separate and (prior.widest == 2 or (name == "dense" and self._mixes)))
        ]
        # The whole Jacobian, unless a solver has its diagonal only.
        return tuple(reversed(fitting) if self._mixes else fitting)

    @property
    def _mixes(self) -> bool:
        """Whether each step has a drift that mixes components where there is room for it."""
        return self.prior.per_step and self.jacobian != "diagonal"

    @property
    def name(self) -> str:
        """The solver in a few letters, such as ``EK1(5)``."""
        prior = self.order if type(self.prior) is IWP else self.prior
        return f"{type(self).__name__}({prior})"

    def method(self, d: int, equation: Equation = FIRST_ORDER) -> Method:
        """What the engine runs for an equation in ``d`` components."""
        if self.order < equation.order:
            raise ValueError(
                f"{self.name} has an order too low for {type(equation).__name__}, whose highest "
                f"derivative is number {equation.order}: use an order of at least "
                f"{equation.order}, better {equation.order + 2}."
            )
        self.prior.check_components(d)
        structure = self.structure or self._fitting()[0]
        n = self.order + 1
        if structure == "dense" and 16 * (n * d) ** 2 > DENSE_LIMIT_BYTES:
            raise ValueError(
                f"{self.name} on {d} components needs a dense covariance of ({n * d}, {n * d}), "
                f"{8 * (n * d) ** 2 / 2**30:.1f} GiB, decomposed in every step. Use SparseEK1 (for "
                "stiff problems with a sparse Jacobian), or EK0 (for others): their cost is linear "
                "in the dimension."
            )
        return Method(
            self.prior,
            STRUCTURES[structure](n, d),
            self.jacobian,
            self.diffusion,
            self.evaluations,
            equation.form,
        )


@dataclass(frozen=True, repr=False)
class EK0(Solver):
    """The explicit solver, for problems that are not stiff: cheap also for many components.

    It needs no Jacobian (the equation is linearised to order zero), and its cost and memory grow in
    proportion to the number of components. Take two evaluations of ``f`` a step, unless you want
    exactly the filter of the literature: errors are several times smaller, and steps may be longer.

    How long, on ``y' = λ y``: with one evaluation it is stable for ``h |λ|`` up to 1 (order 1),
    0.41, 0.17, 0.07 and 0.028 (order 5), and above order 5 this limits the steps at every
    tolerance. With two it is stable up to 2, 1.7, 1.2, 0.76, 0.50 (order 5), 0.33, 0.21 and 0.15
    (order 8).

    Parameters
    ----------
    order
        Order of the prior, 1 to 11: the error of a step of length ``h`` shrinks like
        ``h^(order + 1)``. Or a prior: :class:`IWP`, :class:`Matern`, :class:`IOUP`, one of your own
        (:class:`Prior`).
    diffusion
        How much the solution is expected to wiggle: ``"dynamic"`` (a number for each step),
        ``"fixed"`` (one for all), ``"damped"`` (dynamic, averaged with the step before),
        each also with ``"-mv"``, for a number per component; or a
        diffusion object.
    initialization
        How derivatives at the start are found: ``"taylor"`` (exactly), ``"runge-kutta"`` (from a
        few small steps), ``"diffuse"`` (not at all), or an initialisation object.
    structure
        How covariances are stored: by default in the smallest form that holds them.
    evaluations
        Evaluations of ``f`` in an accepted step, 1 or 2. The second corrects the mean once more;
        covariances and error estimates follow from the first.

    Examples
    --------
    >>> import probode
    >>> solver = probode.EK0(order=5, evaluations=2)
    >>> decay = probode.solve(lambda t, y: -y, (0.0, 1.0), 1.0, solver=solver)
    >>> bool(abs(decay.mean[-1] - 0.3678794412) < 1e-5)
    True
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


@dataclass(frozen=True, repr=False)
class DiagonalEK1(Solver):
    """For components that hardly act on each other: EK1 with only the Jacobian's diagonal.

    A step costs in proportion to the number of components, and stiffness of each of them by itself
    does not limit its length. What components do to each other is neglected in the linearisation:
    where that matters, tolerances have to be tight. Parameters are those of :class:`EK0`, but for
    ``evaluations``.

    Examples
    --------
    >>> import numpy as np
    >>> import probode
    >>> rates = np.array([1.0, 10.0, 100.0])
    >>> result = probode.solve_ivp(
    ...     lambda t, y: -rates * y, (0, 1), np.ones(3), method=probode.DiagonalEK1(5)
    ... )
    >>> bool(np.abs(result.y[:, -1] - np.exp(-rates)).max() < 1e-3)
    True
    """

    jacobian: ClassVar[str] = "diagonal"

    def _structures(self) -> tuple[str, ...]:
        return ("block-diagonal", "dense")


@dataclass(frozen=True, repr=False)
class EK1(Solver):
    """The implicit solver, for stiff problems and all small ones: the default.

    It linearises the equation in each step by its Jacobian, and is A-stable: stiffness does not
    limit its steps. The covariance couples all ``d`` components, and a step costs in proportion to
    the cube of ``(order + 1) d``; for hundreds of components see :class:`SparseEK1`.

    Parameters
    ----------
    order
        Order of the prior, 1 to 11: the error of a step of length ``h`` shrinks like
        ``h^(order + 1)``. Or a prior: :class:`IWP`, :class:`Matern`, :class:`IOUP`, one of your own
        (:class:`Prior`).
    diffusion
        How much the solution is expected to wiggle: ``"dynamic"`` (a number for each step),
        ``"fixed"`` (one for all), ``"damped"`` (dynamic, averaged with the step before); or a
        diffusion object.
    initialization
        How derivatives at the start are found: ``"taylor"`` (exactly), ``"runge-kutta"`` (from a
        few small steps), ``"diffuse"`` (not at all), or an initialisation object.
    structure
        How covariances are stored: by default in the smallest form that holds them.
    error
        What a step is judged by.

        ``"residual"``, as in the paper: the standard deviation of the residual over the step,
        ``|h| s sqrt(diag(H Q Hᵀ))``. A component that relaxes at a rate ``λ`` enters it with
        ``|h λ|`` times its error. So on stiff problems steps are shorter than the tolerance asks
        for.

        ``"correction"``: the same, but at most twenty times the standard deviation of what the
        update adds to ``y`` (in units in which the two are equal where nothing is stiff). Steps
        differ from those of the paper only where a component relaxes a hundred times within one;
        on very stiff problems there are two to ten times fewer. Where the residual alone is a
        thousand times too large, the step is linearised again, and rejected if that changes ``y``.
        ``solve_ivp`` uses it up to order 6; at higher orders such long steps can cost the smoother
        its digits. It is for ``y' = f(t, y)``: implicit equations are judged by corrections in any
        case. See ``docs/performance.md``.

    Examples
    --------
    >>> import numpy as np
    >>> import probode
    >>> stiff = lambda t, y: -1000 * (y - np.cos(t))
    >>> result = probode.solve_ivp(stiff, (0, 5), [1.0], method=probode.EK1(3))
    >>> len(result.t) < 200
    True
    """

    jacobian: ClassVar[str] = "full"
    error: str = field(default="residual", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("error", self.error, ERRORS)

    def method(self, d: int, equation: Equation = FIRST_ORDER) -> Method:
        """What the engine runs, with what steps are judged by."""
        found = super().method(d, equation)
        if self.error == "residual" or equation.linearizations > 1:
            return found
        if equation.order != 1:
            raise ValueError(
                f"error={self.error!r} is for equations of first order, got "
                f'{type(equation).__name__}: use error="residual", or write it as a system.'
            )
        return replace(found, error=self.error)

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


@dataclass(frozen=True, repr=False)
class SparseEK1(Solver):
    """For large stiff problems with a sparse Jacobian: the two-pole filter, thousands of unknowns.

    EK1 carries a covariance of all components. Here the gain is a fixed rational function of the
    Jacobian (:mod:`probode.model.two_pole`), of which one sparse factorisation serves many steps: a
    step costs as much as solving with it, and a kept step takes ``(order + 1) d`` numbers. The mean
    is of order ``order + 1``. Standard deviations are those of calibrated error bars
    (``calibration="defect"``), or of what steps are judged by (``"model"``, one number for all
    components). There is no smoother, and there are no samples: the gain is not that of a Gaussian
    model, and how errors of different components go together is not known.

    Parameters
    ----------
    order
        1 to 5. Up to 2 it is A-stable; 3 suits undamped oscillations (89.5 degrees), 4 (83) and 5
        (82) all that is damped.
    linear
        ``"auto"`` or ``"direct"``: LU, in bands where there are any. ``"krylov"``: BiCGSTAB, or
        else GMRES, with products ``J v``, for problems whose factors do not fit.
    preconditioner
        For these: ``(t, y, c, b) -> u`` with ``u`` near the solution of ``(M - c J) u = b``,
        traceable by JAX; ``"jacobi"``: the diagonal of ``M - c J``; ``"none"``. By default
        ``"jacobi"``, where the program says where the Jacobian has entries.

    Examples
    --------
    >>> import numpy as np
    >>> import probode
    >>> def heat(t, u):
    ...     return 400 * (np.roll(u, 1) - 2 * u + np.roll(u, -1))
    >>> start = np.sin(np.linspace(0, 2 * np.pi, 200, endpoint=False))
    >>> result = probode.solve_ivp(heat, (0, 0.1), start, method=probode.SparseEK1(3))
    >>> result.success
    True
    """

    jacobian: ClassVar[str] = "sparse"
    smooths: ClassVar[bool] = False

    order: int = 4
    initialization: Initialization = field(default="slope", kw_only=True)  # type: ignore[assignment]
    linear: str = field(default="auto", kw_only=True)
    preconditioner: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.prior) is not IWP or self.order > HIGHEST:
            raise ValueError(
                f"SparseEK1 has gains for IWP priors of orders 1 to {HIGHEST}, got {self.prior!r}."
            )
        if self.initialization.name != "slope":
            raise ValueError(
                f"SparseEK1 begins with initialization='slope', got {self.initialization.name!r}: "
                "its order rises on the way."
            )
        check_choice("linear", self.linear, ("auto", "direct", "krylov"))
        if self.preconditioner is not None and self.linear != "krylov":
            raise ValueError("a preconditioner is for linear='krylov': an LU is exact.")
        if isinstance(self.preconditioner, str):
            check_choice("preconditioner", self.preconditioner, ("jacobi", "none"))
        elif not callable(self.preconditioner) and self.preconditioner is not None:
            raise TypeError(
                "preconditioner must be a function (t, y, c, b) -> u, 'jacobi' or 'none', got "
                f"{type(self.preconditioner).__name__}."
            )

    def _check_diffusion(self) -> None:
        if self.diffusion.name != "dynamic":
            raise ValueError(
                f"SparseEK1 has the diffusion 'dynamic', got {self.diffusion.name!r}: its error "
                "bars are calibrated, see calibration='defect'."
            )

    def _structures(self) -> tuple[str, ...]:
        return ("isotropic",)


def with_start(solver: Solver, done: Initialization) -> Solver:
    """The solver with the start that was made: it is another one where derivatives fail."""
    if solver.initialization == done:
        return solver
    return replace(solver, initialization=done)


def for_function(solver: Solver, function: Field, t0: Any, y0: Any) -> Solver:
    """Return the solver, with a start without derivatives if the function has none."""
    if function.has_derivatives(t0, y0):
        return solver
    if solver.jacobian != "none" and function.jacobian_program is None:
        raise ValueError(
            f"{solver.name} needs the Jacobian of vector_field, which calls jax.pure_callback: "
            "JAX cannot differentiate that. Pass jac=, use EK0, or give the function that calls "
            "it a derivative (jax.custom_jvp)."
        )
    taylor = isinstance(solver.initialization, TaylorStart)
    return with_start(solver, RungeKuttaStart()) if taylor else solver


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
