"""``python -m experiments``: the same as ``probode paper``."""

import sys

from probode.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "paper")
    sys.exit(main())
