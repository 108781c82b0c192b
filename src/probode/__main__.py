"""``python -m probode``: the command line."""

import sys

from probode.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
