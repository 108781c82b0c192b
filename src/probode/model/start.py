"""What is known of a solution before the first step."""

from typing import NamedTuple

from jaxtyping import Array, Float


class Start(NamedTuple):
    """Mean and (independent) standard deviations of the state at ``t0``."""

    mean: Float[Array, "n d"]
    std: Float[Array, "n d"] | None
    """``None``: known exactly."""
    absolute: bool = True
    """Whether ``std`` is meant as it stands, or per unit of the square root of the diffusion."""
