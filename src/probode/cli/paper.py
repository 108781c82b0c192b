"""The command ``probode paper``, for which a checkout of the repository is needed."""

import argparse
import sys
from pathlib import Path

EXAMPLES = ["paper --quick", "paper --out out/paper", "paper --only van-der-pol structure"]
_CHECKOUT = Path(__file__).parents[3]
"""Where the experiments are, if the library was not copied elsewhere."""
_NOT_HERE = (
    "the paper's experiments are not part of the installed package. They are in the folder "
    "'experiments' of the source distribution and the repository: run 'make paper' there."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command, and what it runs; without the experiments, say where they are."""
    if (_CHECKOUT / "experiments" / "command.py").is_file():
        sys.path.append(str(_CHECKOUT))
    try:
        from experiments.command import add_arguments, run
    except ImportError:
        parser.exit(2, f"{parser.prog}: error: {_NOT_HERE}\n")
    add_arguments(parser)
    parser.set_defaults(command=run)
