"""Hostile inputs for everything that reads a file which a stranger may have written.

    PYTHONPATH=.:tests nice .venv/bin/python tests/support/fuzzing.py --inputs 100000 --out fuzz.json

Every input is made from a number, so that a failure can be repeated: `check("settings", 123)`. An input must be
accepted or refused with a message, quickly, and no code may run.
"""

import argparse
import hashlib
import json
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import save
from support import running
from support.hostile import CODE, MARK, VALUES, WORDS, YAML_PARTS, damage, mutate

from engram.agent.components.component import BuildContext
from engram.agent.components.graph import read_graph
from engram.agent.components.plan import make_plan
from engram.config.load import load, validate_stored
from engram.display.page import page
from engram.display.watching import PlainWatcher, RunFollower, TerminalWatcher
from engram.env.mettagrid.world_file import read_world
from engram.env.mettagrid.worlds import world
from engram.env.settings import Recall, Small
from engram.runs.report import read_report, write_report
from engram.runs.state import read_run
from engram.settings import SettingsError, UserError
from engram.stored.files import UnreadableError, parse_yaml
from engram.stored.trust import code_named_in
from engram.training.checkpoint.files import BadCheckpointError, load_checkpoint, load_latest
from engram.training.checkpoint.loading import find_checkpoint, load_agent
from engram.training.metrics import MetricsFile

REFUSALS = (UserError, UnreadableError, BadCheckpointError)
SECONDS = 2.0  # of processor time, for one input


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
        files["weights.safetensors"] = damage(files["weights.safetensors"], chance)
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


def fuzz_report(chance: random.Random) -> None:
    """All that `report`, `diagnose` and `watch` read of a run: metrics, plan, and what `engram memory` has found."""
    run = _run_to_show()
    metrics, plan, memory = _shown_files()
    lines = [json.dumps(mutate(line, chance) if chance.random() < 0.3 else line) for line in metrics]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "plan.json").write_text(json.dumps(mutate(plan, chance) if chance.random() < 0.5 else plan))
    (run / "memory.json").write_text(json.dumps(mutate(memory, chance)))
    report = read_report([run])
    read_run(run)
    follower = RunFollower(run)
    follower.read(running=False)
    for show in (PlainWatcher, lambda stream: TerminalWatcher(Console(file=stream))):
        with show(StringIO()) as watcher:
            watcher.show(follower)
    if chance.random() < 0.1:  # 2 MB
        write_report(report, run / "report.html")
        _check_page((run / "report.html").read_text(encoding="utf-8"))


def fuzz_page(chance: random.Random) -> None:
    """Replay and memory pages: no text of an environment or run may end the data that it is in."""
    facts = mutate({"title": "x", "names": ["a", {"b": "c"}], "returns": [1.0, None]}, chance)
    if isinstance(facts, dict):
        facts = json.loads(json.dumps(facts), parse_constant=lambda name: None)  # pages have no NaN
        text = page(chance.choice(["replay.html", "memory.html"]), facts, {"x": np.zeros(3)})
        content = _check_page(text.encode().decode())
        assert content["layout"][0]["shape"] == [3]


def fuzz_exported(chance: random.Random) -> None:
    """Exported models and other files in the place of a run or checkpoint; Engram never reads an export back."""
    path = _folder() / chance.choice(["policy.onnx", "policy.pt2"])
    path.write_bytes(damage(b"PK\x03\x04" + CODE.encode() * 40, chance))
    directory = _folder() / "exported" / "checkpoints" / "epoch_000001"
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("manifest.json", "state.json", "weights.safetensors"):
        (directory / name).write_bytes(path.read_bytes())
    opened = chance.choice([path, directory, directory.parents[1]])
    find_checkpoint(opened, "checkpoint")


def _check_page(text: str) -> dict[str, Any]:
    """The data of a page, which must be one script element."""
    assert "alert(1)</script>" not in text, "a text of the data ends its script"
    found = re.search(r'<script id="data" type="application/json">([^<]*)</script>', text)
    assert found, "the data is not one script element"
    return json.loads(found[1])


FUZZERS: dict[str, tuple[Callable[[random.Random], None], float]] = {  # what -> how, and the share of all inputs
    "settings": (fuzz_settings, 0.25),
    "graph": (fuzz_graph, 0.22),
    "yaml": (fuzz_yaml, 0.25),
    "metrics": (fuzz_metrics, 0.1),
    "page": (fuzz_page, 0.05),
    "checkpoint": (fuzz_checkpoint, 0.05),
    "report": (fuzz_report, 0.03),
    "exported": (fuzz_exported, 0.03),
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
def _run_to_show() -> Path:
    running.run(_folder(), name="shown", epochs=3)
    return _folder() / "shown"


@cache
def _shown_files() -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    run = _run_to_show()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [*map(json.loads, lines)], json.loads((run / "plan.json").read_text()), {"verdict": ["It remembers."]}


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
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then; each fuzzer has the same time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"command": " ".join(["tests/support/fuzzing.py", *sys.argv[1:]]), "inputs": 0}
    for what, (_, share) in FUZZERS.items():
        count, accepted, slowest, failures = 0, 0, 0.0, []
        check_once(what, options.first)
        deadline = time.monotonic() + 60 * options.minutes / len(FUZZERS)
        for number in range(options.first, options.first + round(options.inputs * share)):
            if time.monotonic() > deadline:
                break
            count += 1
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
    for make in (_settings, _graphs, _world, _checkpoint, _context, _run_settings, _shown_files):
        make()
    with suppress(Exception):
        FUZZERS[what][0](random.Random(number))


if __name__ == "__main__":
    main()
