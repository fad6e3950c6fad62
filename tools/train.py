#!/usr/bin/env python3
"""`./tools/train.py …` is `engram train …`, in the project's own virtual environment."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")

if __name__ == "__main__":
    python = os.path.join(VENV, "bin", "python")
    if os.path.exists(python) and os.path.realpath(sys.prefix) != os.path.realpath(VENV):
        os.execv(python, [python, *sys.argv])
    try:
        from engram.cli.main import main
    except ImportError as error:
        sys.exit(f"Engram is not installed for this Python ({error}): run `make install` in {ROOT}")
    sys.exit(main(["train", *sys.argv[1:]]))
