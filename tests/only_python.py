"""Numbers by way of a text, which no tracing follows: functions that only Python can evaluate."""


def number(x):
    """Return ``float(x)``, to the last digit."""
    return float(str(x))
