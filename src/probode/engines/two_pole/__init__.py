"""The two-pole filter: large stiff problems, at the cost of sparse factorisations.

``step`` is the algorithm, in NumPy; ``linear`` solves its systems; ``jacobians`` are where its
matrices come from; ``engine`` takes the steps; ``dense`` interpolates them. The gains are those of
:mod:`probode.model.two_pole`.
"""
