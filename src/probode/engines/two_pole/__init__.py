"""The two-pole filter: large stiff problems, at the cost of sparse factorisations.

``step`` is the algorithm, on arrays of NumPy's or JAX's (``vectors``); ``linear`` and ``krylov``
solve its systems; ``system`` says where they come from; ``outset`` begins, ``engine`` takes the
steps, ``saving`` keeps chosen times, ``dense`` interpolates. ``machine`` is the same algorithm in
the kernels, whose chunks of steps ``in_kernels`` takes. The gains are those of
:mod:`probode.model.two_pole`.
"""
