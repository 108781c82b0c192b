"""The command ``probode paper``, for which a checkout of the repository is needed."""

import argparse

EXAMPLES = ["paper --quick", "paper --out out/paper", "paper --only van-der-pol structure"]
_NOT_HERE = (
    "the paper's experiments are not part of the installed package. They are in the folder "
    "'experiments' of the source distribution and the repository: run 'make paper' there."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command, and what it runs; without the experiments, say where they are."""
    try:
        from experiments.command import add_arguments, run
    except ImportError:
        parser.exit(2, f"{parser.prog}: error: {_NOT_HERE}\n")
    add_arguments(parser)
    parser.set_defaults(command=run)
