"""`python -m engram` is the `engram` command."""

import sys

from engram.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
