"""docs/environments.md: every wrapper is listed and every example runs."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from engram.env.block import Buffers
from engram.env.registry import make_block, make_spec
from engram.env.settings import Gym, MettagridFile
from engram.env.wrappers import VELOCITIES, WRAPPERS

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "environments.md").read_text(encoding="utf-8")


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_wrapper_is_documented() -> None:
    table = PAGE.partition("| wrapper |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(WRAPPERS)
    assert all(name.removesuffix("Continuous") in table for name in VELOCITIES)


def test_the_documented_environment_runs(tmp_path, monkeypatch) -> None:
    (tmp_path / "counting.py").write_text(examples("python")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    settings = Gym(id="counting:Counting-v0")
    buffers = Buffers.allocate(make_spec(settings), 8)
    block = make_block(settings, range(8), 0, buffers)
    block.reset()
    lights = np.zeros(8)
    for _ in range(5):
        lights += buffers.observations[:, 0]
        buffers.actions[:] = lights
        ended = block.step()
    assert ended is not None
    assert buffers.terminals.all()
    assert (buffers.rewards == 1).all()
    assert ended.stats["lights"] == lights.tolist()


def test_the_documented_world_can_be_played_and_pays_rewards(tmp_path) -> None:
    (tmp_path / "world.yaml").write_text(examples("yaml")[0], encoding="utf-8")
    settings = MettagridFile(path=str(tmp_path / "world.yaml"))
    buffers = Buffers.allocate(make_spec(settings), 8)
    assert buffers.spec.agents == 2
    block = make_block(settings, range(4), 0, buffers)
    block.reset()
    draw, rewards = np.random.default_rng(0), 0.0
    for _ in range(100):
        buffers.actions[:] = draw.integers(buffers.spec.single_action_space.n, size=8)
        block.step()
        rewards += buffers.rewards.sum()
    assert rewards > 0
    block.close()


def test_the_documented_loop_runs() -> None:
    done = subprocess.run([sys.executable, "-c", examples("python")[1]], capture_output=True, text=True, check=True)
    assert re.match(r"[45]\d\d episodes of 64 rows, mean return 0\.[23]", done.stdout)  # which batches come is timing
