"""Hostile inputs for everything that reads a file which a stranger may have written.

    PYTHONPATH=.:tests nice .venv/bin/python tests/support/fuzzing.py --inputs 100000 --out fuzz.json

Every input is made from a number, so that a failure can be repeated: `check("settings", 123)`. An input must be
accepted or refused with a message, quickly, and no code may run.
"""

import argparse
import hashlib
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from support import running

from engram.agent.components.component import BuildContext
from engram.agent.components.graph import read_graph
from engram.agent.components.plan import make_plan
from engram.config.load import load, validate_stored
from engram.env.mettagrid.world_file import read_world
from engram.env.mettagrid.worlds import world
from engram.env.settings import Recall, Small
from engram.settings import SettingsError, UserError
from engram.stored.files import UnreadableError
from engram.stored.plain_yaml import parse_yaml
from engram.stored.trust import code_named_in
from engram.training.checkpoint.files import BadCheckpointError, load_checkpoint, load_latest
from engram.training.checkpoint.origin import load_agent
from engram.training.metrics import MetricsFile

REFUSALS = (UserError, UnreadableError, BadCheckpointError)
SECONDS = 2.0  # of processor time, for one input
MARK = "engram_fuzz_ran_code"  # an attribute of `sys` that code in an input would set
CODE = f"__import__('sys').{MARK}"
HOSTILE: list[Callable[[], Any]] = [
    lambda: None,
    lambda: [],
    lambda: {},
    lambda: "",
    lambda: True,
    lambda: -1,
    lambda: 0,
    lambda: 10**9,
    lambda: 2**63,
    lambda: 10**400,
    lambda: 1e308,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: "x" * 10_000,
    lambda: "\x00\ud800",
    lambda: "../../../etc/passwd",
    lambda: "/dev/zero",
    lambda: "evil.py:Evil",
    lambda: "os:system",
    lambda: "${oc.env:HOME}",
    lambda: {"_target_": "os.system"},
    lambda: CODE,
    lambda: [[[[[[[[1]]]]]]]],
    lambda: {"a": {"b": {"c": {}}}},
    lambda: [0] * 1000,
    lambda: {str(i): i for i in range(200)},
    lambda: "linear",
    lambda: 0.5,
    lambda: 3,
]
NUMBER = "9" * 5000
YAML_PARTS = ["a: ", "- ", "[", "]", "{", "}", "&a ", "*a", "<<: ", "!!int ", "!!python/object:os.system ", "|\n", "~"]
YAML_PARTS += ["\n", "  ", "? ", ": ", "1e5", "0x1F", "'", '"', "#", "---\n", "...\n", "%YAML 9\n", "\t", ">\n", NUMBER]
WORDS = [
    "run",
    "seed",
    "env",
    "env.id",
    "env.delay",
    "trainer.ppo.gamma",
    "trainer.schedule",
    "py_agent",
    "agent",
    "x.y",
]
VALUES = [
    "1",
    "recall",
    "fast",
    "[1,2",
    "{a:b}",
    "null",
    "''",
    "1e999",
    "${a}",
    "gym",
    "@",
    "a:b",
    "∞",
    NUMBER,
    "{" * 2000,
]


def mutate(document: Any, chance: random.Random) -> Any:
    """A copy with up to three parts replaced, removed, renamed or moved."""
    document = deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        places = [*_places(document)]
        if not places:
            return chance.choice(HOSTILE)()
        parent, key = chance.choice(places)
        action = chance.random()
        if action < 0.6:
            parent[key] = chance.choice(HOSTILE)()
        elif action < 0.75:
            del parent[key]
        elif action < 0.9:
            other, other_key = chance.choice(places)
            if other_key in other if isinstance(other, dict) else other_key < len(other):
                parent[key] = deepcopy(other[other_key])
        elif isinstance(parent, dict):
            parent[chance.choice(["evil", "kind", "type", "name", 3, ""])] = parent.pop(key)
    return document


def _places(value: Any) -> Any:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def fuzz_settings(chance: random.Random) -> None:
    """Stored settings."""
    content = mutate(chance.choice(_settings()), chance)
    if isinstance(content, dict):
        code_named_in({str(key): value for key, value in content.items()})
        validate_stored({str(key): value for key, value in content.items()}, Path("settings.yaml"))


def fuzz_yaml(chance: random.Random) -> None:
    parse_yaml("".join(chance.choices(YAML_PARTS, k=chance.randint(1, 40))), "file.yaml")


def fuzz_words(chance: random.Random) -> None:
    """Command lines."""
    load([f"{chance.choice(WORDS)}={chance.choice(VALUES)}" for _ in range(chance.randint(1, 3))])


def fuzz_graph(chance: random.Random) -> None:
    """Component graphs, up to the plan of a forward pass."""
    graph = read_graph(mutate(chance.choice(_graphs()), chance))
    if not graph.problems.lines:
        make_plan(graph, _context())
    if graph.problems.lines:
        raise SettingsError(graph.problems.lines)


def fuzz_world(chance: random.Random) -> None:
    """World files."""
    path = _folder() / "world.json"
    path.write_text(json.dumps(mutate(_world(), chance)), encoding="utf-8")
    read_world(str(path))


def fuzz_checkpoint(chance: random.Random) -> None:
    """Checkpoints: half of them with the checksums of what they hold now."""
    path = _folder() / "checkpoints" / "epoch_000002"
    state, tensors, manifest = _checkpoint()
    files = {"state.json": json.dumps(mutate(state, chance)).encode(), "weights.safetensors": save(tensors)}
    if chance.random() < 0.5:
        content = bytearray(files["weights.safetensors"])
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(min(len(content), 600))] = chance.randrange(256)
        files["weights.safetensors"] = bytes(content)
    if chance.random() < 0.5:
        manifest = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    if chance.random() < 0.2:
        manifest = mutate(manifest, chance)
    files["manifest.json"] = json.dumps(manifest).encode()
    for name, content in files.items():
        (path / name).write_bytes(content)
    loaded, _ = load_latest(path.parent)
    assert loaded is not None, "the checkpoint before is not used"
    checkpoint = load_checkpoint(path)
    load_agent(checkpoint, _run_settings().policy, _spec(), training=False)


def fuzz_metrics(chance: random.Random) -> None:
    path = _folder() / "metrics.jsonl"
    lines = [json.dumps({"epoch": 1})]
    lines += [json.dumps(mutate({"epoch": 2, "loss": 0.5}, chance)) for _ in range(chance.randint(1, 3))]
    path.write_text("\n".join(lines)[: chance.randint(13, 200)])
    MetricsFile.truncate(path, chance.randint(1, 3))
    assert path.read_text().startswith(lines[0] + "\n")


FUZZERS: dict[str, tuple[Callable[[random.Random], None], float]] = {  # what -> how, and the share of all inputs
    "settings": (fuzz_settings, 0.3),
    "graph": (fuzz_graph, 0.28),
    "yaml": (fuzz_yaml, 0.25),
    "metrics": (fuzz_metrics, 0.1),
    "checkpoint": (fuzz_checkpoint, 0.05),
    "world": (fuzz_world, 0.015),
    "words": (fuzz_words, 0.005),
}


def check(what: str, number: int) -> bool:
    """Whether an input was accepted. Raises if it is neither accepted nor refused with a message."""
    began, message = time.process_time(), None
    try:
        FUZZERS[what][0](random.Random(f"{what} {number}"))
    except REFUSALS as refusal:
        message = str(refusal)
    seconds = time.process_time() - began
    assert message != "", "refused without a message"
    assert seconds < SECONDS, f"took {seconds:.1f} s"
    assert not hasattr(sys, MARK), "code was run"
    assert "evil" not in sys.modules, "code was imported"
    return message is None


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="engram-fuzz-"))


@cache
def _run_settings() -> Any:
    return load([*running.RECALL, *running.SMALL])


@cache
def _settings() -> list[dict[str, Any]]:
    each: list[list[str]] = [["env=recall"], ["env=gym"], ["agent=fast", "env=arena"], ["py_agent=a.b:C"]]
    return [json.loads(load(words).model_dump_json(exclude_none=True)) for words in each]


@cache
def _graphs() -> list[dict[str, Any]]:
    return [load([f"agent={name}"]).agent.components for name in ("fast", "latent_attn_small", "reference")]  # type: ignore[union-attr]


@cache
def _spec() -> Any:
    return running.make_spec(Recall(delay=2))


@cache
def _context() -> BuildContext:
    return BuildContext(_spec(), 4)


@cache
def _world() -> dict[str, Any]:
    return json.loads(world(Small()).model_dump_json())


@cache
def _checkpoint() -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, str]]:
    """The state, weights and manifest of a real one, which stays as `epoch_000001` beside the damaged one."""
    running.run(_folder(), epochs=1)
    real = _folder() / "x" / "checkpoints" / "epoch_000001"
    checkpoint = load_checkpoint(real)
    shutil.copytree(real, _folder() / "checkpoints" / "epoch_000001")
    (_folder() / "checkpoints" / "epoch_000002").mkdir()
    return checkpoint.state, checkpoint.groups["weights"], json.loads((real / "manifest.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"command": " ".join(["tests/support/fuzzing.py", *sys.argv[1:]]), "inputs": 0}
    for what, (_, share) in FUZZERS.items():
        count, accepted, slowest, failures = round(options.inputs * share), 0, 0.0, []
        check_once(what, options.first)
        for number in range(options.first, options.first + count):
            began = time.process_time()
            try:
                accepted += check(what, number)
            except Exception as error:
                failures.append(f"{number}: {type(error).__name__}: {str(error)[:200]}")
            slowest = max(slowest, time.process_time() - began)
        result["inputs"] += count
        result[what] = {"inputs": count, "accepted": accepted, "slowest_seconds": round(slowest, 3)}
        result[what]["failures"] = failures
        print(what, {**result[what], "failures": failures[:5]}, len(failures), flush=True)
    result["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(_folder())


def check_once(what: str, number: int) -> None:
    """Build what all inputs share, before any of them is timed."""
    for make in (_settings, _graphs, _world, _checkpoint, _context, _run_settings):
        make()
    with suppress(Exception):
        FUZZERS[what][0](random.Random(number))


if __name__ == "__main__":
    main()
