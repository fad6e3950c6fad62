"""Engram's meter, loaded from its file: the virtual environment of a peer does not contain Engram."""

import json
import runpy
import sys
from pathlib import Path

Meter = runpy.run_path(str(Path(__file__).parents[3] / "engram" / "bench" / "meter.py"))["Meter"]


def options() -> dict:
    """The task, from the command line."""
    return json.loads(sys.argv[1])
