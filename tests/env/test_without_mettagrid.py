"""Without the package mettagrid, everything else works."""

import subprocess
import sys

BLOCKED = "import sys; sys.modules['mettagrid'] = None; from engram.cli.main import main; sys.exit(main(sys.argv[1:]))"


def engram(*words: str, cwd) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", BLOCKED, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def test_mettagrid_worlds_name_the_package_to_install(tmp_path):
    done = engram("train", "env=tmaze", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "env: tmaze, small, arena, navigation and mettagrid need the package mettagrid, which is not installed: "
        "pip install 'engram-rl[mettagrid]', or choose a different one, such as env=recall or env=CartPole-v1\n"
    )
    assert not [*tmp_path.iterdir()]


def test_recall_trains_and_gymnasium_and_pettingzoo_are_valid(tmp_path):
    sizes = ["trainer.num_envs=2", "trainer.bptt_horizon=4", "trainer.batch_size=8", "trainer.total_timesteps=8"]
    done = engram("train", "env=recall", *sizes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mettagrid" not in done.stdout


def test_gymnasium_and_pettingzoo_environments_are_made(tmp_path):
    (tmp_path / "duel.py").write_text(DUEL)
    for words in (["env=CartPole-v1"], ["env=pettingzoo", "env.module=duel"]):
        done = engram("validate", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


DUEL = """
from gymnasium import spaces
from pettingzoo import ParallelEnv

class Duel(ParallelEnv):
    metadata = {"name": "duel"}
    possible_agents = ["a", "b"]
    def observation_space(self, agent):
        return spaces.Discrete(2)
    def action_space(self, agent):
        return spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return {"a": 0, "b": 1}, {"a": {}, "b": {}}
    def step(self, actions):
        raise NotImplementedError
    def close(self):
        pass

def parallel_env():
    return Duel()
"""
