"""Borrowing from JAX, and saying what could not be had."""

import logging
from importlib import import_module
from typing import Any

import jax

logger = logging.getLogger("probode")

_said: set[str] = set()


def say(lacking: str, instead: str) -> None:
    """Announce once what this JAX lacks, and what is done instead."""
    if lacking not in _said:
        _said.add(lacking)
        logger.warning("JAX %s lacks %s: %s.", jax.__version__, lacking, instead)


def said() -> frozenset[str]:
    """What JAX was found to lack so far."""
    return frozenset(_said)


def borrowed(module: str, name: str) -> Any | None:
    """An attribute of JAX's, or ``None``."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return None
