"""The sparsity pattern of ``∂f/∂y``, read from the program of a vector field."""

from probode.programs.sparsity.walk import sparsity

__all__ = ["sparsity"]
