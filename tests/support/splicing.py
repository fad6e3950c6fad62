"""A second generator of hostile inputs: texts of real files, spliced with each other and damaged byte by byte.

    PYTHONPATH=.:tests nice .venv/bin/python tests/support/splicing.py --inputs 20000 --out splices.json

`fuzzing.py` replaces values in parsed documents, so its files are always well-formed. These are what an editor, a merge
or a broken disk may leave: lines and tokens of several files in one, repeated, swapped or cut off.
"""

import argparse
import json
import random
import re
import resource
import sys
import time
from collections import Counter
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from support import fuzzing
from support.hostile import MARK

from engram.agent.components.graph import read_graph
from engram.agent.components.plan import make_plan
from engram.config.load import validate_stored
from engram.display.watching import RunFollower
from engram.env.mettagrid.world_file import read_world
from engram.runs.report import read_report
from engram.stored.files import parse_yaml
from engram.stored.trust import code_named_in
from engram.training.checkpoint.files import load_checkpoint
from engram.training.checkpoint.loading import load_agent

PACKAGE = Path(__file__).resolve().parents[2] / "engram"
TOKENS = re.compile(r"[A-Za-z_]+|-?[0-9.]+(?:e-?[0-9]+)?|\s+|.", re.DOTALL)
ODD = [
    "-0",
    "1e999",
    "NaN",
    "-Infinity",
    "9" * 4400,
    "0x7f",
    "1_0",
    "!!set",
    "&x",
    "*x",
    "<<",
    "\\u0000",
    "\\ud800",
    "\x85",
]
ODD += [
    "evil:Evil",
    "evil.py",
    "../..",
    "null",
    "{}",
    "[]",
    '"',
    "'",
    "\u2028",
    "\ufeff",
    "\x00",
    "\x1b[2J",
    ": ",
    "- ",
    "\t",
]


def splice(text: str, corpus: list[str], chance: random.Random) -> str:
    """A text with up to five accidents."""
    for _ in range(chance.randint(1, 5)):
        pieces = text.splitlines(keepends=True) if chance.random() < 0.5 else TOKENS.findall(text)
        if not pieces:
            break
        at, other = sorted((chance.randrange(len(pieces)), chance.randrange(len(pieces))))
        action = chance.randrange(7)
        if action == 0:
            pieces[at] = chance.choice(ODD)
        elif action == 1:
            del pieces[at : at + chance.randint(1, 3)]
        elif action == 2:
            pieces[at], pieces[other] = pieces[other], pieces[at]
        elif action == 3:
            pieces[at:at] = pieces[at : at + 5] * chance.randint(1, 40)
        elif action == 4:
            foreign = TOKENS.findall(chance.choice(corpus))
            begin = chance.randrange(len(foreign))
            pieces[at:at] = foreign[begin : begin + chance.randint(1, 60)]
        elif action == 5:
            del pieces[other:]
        else:
            pieces[at] = "".join(chr(ord(c) ^ (1 << chance.randrange(7))) for c in pieces[at][:20])
        text = "".join(pieces)[:200_000]
    return text


def read(kind: str, text: str) -> None:
    """Read a text as Engram reads files of this kind."""
    folder = fuzzing._folder()
    content = text.encode("utf-8", "surrogatepass")
    if kind == "settings":
        settings = parse_yaml(text, "settings.yaml")
        if isinstance(settings, dict):
            named = {str(key): value for key, value in settings.items()}
            code_named_in(named)
            validate_stored(named, Path("settings.yaml"))
    elif kind == "graph":
        document = parse_yaml(text, "agent.yaml")
        graph = read_graph(document.get("components") if isinstance(document, dict) else document)
        if not graph.problems.lines:
            make_plan(graph, fuzzing._context())
    elif kind == "world":
        path = folder / "spliced.json"
        path.write_bytes(content)
        read_world(str(path))
    elif kind == "state":
        _read_checkpoint(content)
    else:
        run = fuzzing._run_to_show()
        (run / kind).write_bytes(content)
        read_report([run])
        RunFollower(run).read(running=False)


def _read_checkpoint(state: bytes) -> None:
    """A checkpoint with this state and the right checksums."""
    path = fuzzing._folder() / "checkpoints" / "epoch_000002"
    weights = _weights()
    names = {"state.json": state, "weights.safetensors": weights}
    for name, content in names.items():
        (path / name).write_bytes(content)
    manifest = {name: sha256(content).hexdigest() for name, content in names.items()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    load_agent(load_checkpoint(path), fuzzing._run_settings().policy, fuzzing._spec(), training=False)


@cache
def _weights() -> bytes:
    return save(fuzzing._checkpoint()[1])


@cache
def corpora() -> dict[str, list[str]]:
    run = fuzzing._run_to_show()
    agents = [path.read_text() for path in sorted(PACKAGE.glob("**/*.yaml")) if "components:" in path.read_text()]
    return {
        "settings": [(run / "settings.yaml").read_text(), *map(json.dumps, fuzzing._settings())],
        "graph": agents,
        "world": [json.dumps(fuzzing._world(), indent=1)],
        "state": [json.dumps(fuzzing._checkpoint()[0], indent=1)],
        "metrics.jsonl": [(run / "metrics.jsonl").read_text()],
        "plan.json": [(run / "plan.json").read_text()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    everything = [text for texts in corpora().values() for text in texts]
    counts: Counter[str] = Counter()
    failures, slowest = [], 0.0
    for number in range(options.inputs):
        chance = random.Random(f"{options.seed} {number}")
        kind = chance.choice(sorted(corpora()))
        text = splice(chance.choice(corpora()[kind]), everything, chance)
        began, outcome = time.process_time(), "accepted"
        try:
            read(kind, text)
        except fuzzing.REFUSALS as refusal:
            outcome = "refused" if str(refusal) else "refused without a message"
        except Exception as error:
            outcome = f"{type(error).__name__}: {str(error)[:200]}"
        seconds = time.process_time() - began
        slowest = max(slowest, seconds)
        if hasattr(sys, MARK) or "evil" in sys.modules:
            outcome = "code was run"
        if outcome not in ("accepted", "refused") or seconds > fuzzing.SECONDS:
            failures.append(f"{number} {kind}: {outcome}, {seconds:.1f} s")
            print(failures[-1], flush=True)
        counts[f"{kind}: {outcome if outcome in ('accepted', 'refused') else 'failed'}"] += 1
    result: dict[str, Any] = {
        "command": " ".join(["tests/support/splicing.py", *sys.argv[1:]]),
        "inputs": options.inputs,
        "by kind": dict(sorted(counts.items())),
        "slowest_seconds": round(slowest, 3),
        "failures": failures,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
