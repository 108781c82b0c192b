"""The command line."""

from probode.cli.commands import main

__all__ = ["main"]
