"""The experiments of *Calibrated Adaptive Probabilistic ODE Solvers*, run again with our solvers.

Bosch, Hennig and Tronarp, AISTATS 2021: main text and supplement. ``make paper`` draws every
figure anew, writes the numbers behind it, and checks every printed statement.

=====================  ===========================================================================
``settings``           what is run: everything, or a coarse subset
``reference``          solutions by other methods, and how far to trust them
``measure``            error, chi-squared statistic, evaluations, seconds
``cache``, ``work``    a file per configuration; one or two processes
experiments            ``lotka_volterra``, ``van_der_pol``, ``calibration``, ``structure``,
                       ``dormand_prince``: configurations, results, tables
``claims``, ...        printed statements, measured figures, rules that compare them
``figures``, ...       drawings, for light and dark pages and for print
``report``             one page of HTML
``pipeline``           all of it, in order
=====================  ===========================================================================
"""
