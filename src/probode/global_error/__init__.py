"""Error bars that are true: the defect of the posterior mean, transported to a global error.

``interpolant`` makes a function of the mean, ``stages`` and ``transport`` solve the ODE of its
error on the solver's own steps, ``scales`` turn the result into standard deviations, ``diagnosis``
says when not to trust them. ``result`` is what a posterior keeps of it.
"""
