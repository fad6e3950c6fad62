"""Environments that break the interfaces of Gymnasium and PettingZoo are refused with one message, never accepted."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from pettingzoo import ParallelEnv

from engram.env import user_code
from engram.env.settings import PythonEnv
from engram.env.vector import VectorEnv
from engram.env.workers.restarts import Restarts
from engram.settings import UserError

SPACE = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
OBSERVATION = np.zeros(3, np.float32)


class Wrong(gymnasium.Env):
    observation_space, action_space = SPACE, gymnasium.spaces.Discrete(2)
    outcome: Any = (OBSERVATION, 0.0, False, False, {})
    first: Any = (OBSERVATION, {})

    def reset(self, *, seed=None, options=None):
        return self.first

    def step(self, action):
        return self.outcome


class WrongParallel(ParallelEnv):
    possible_agents = ("a", "b")
    change: Any = None

    def observation_space(self, agent):
        return SPACE

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return dict.fromkeys("ab", OBSERVATION), {"a": {}, "b": {}}

    def step(self, actions):
        outcome = [dict.fromkeys("ab", value) for value in (OBSERVATION, 0.0, False, False, {})]
        return tuple(type(self).change(outcome) or outcome)


def play(environment: type, check: str = "shapes") -> None:
    user_code.register(environment, "wrong:Environment")
    with VectorEnv(PythonEnv(name="wrong:Environment", check=check), 2) as env:
        env.reset()
        for _ in range(3):
            batch = env.recv()
            env.send(batch, np.zeros(batch.buffers.actions.shape, np.int64))


def test_the_environments_below_are_right_until_they_are_changed() -> None:
    play(Wrong)
    play(type("Right", (WrongParallel,), {"change": staticmethod(lambda outcome: None)}))


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (2, "no", "terminated is 'no', expected a bool"),
        (2, "", "terminated is '', expected a bool"),
        (2, None, "terminated is None, expected a bool"),
        (2, 0.0, "terminated is 0.0, expected a bool"),
        (2, 2, "terminated is 2, expected a bool"),
        (2, np.array([False, True]), r"terminated is array\(.*expected a bool"),
        (3, [], r"truncated is \[\], expected a bool"),
        (1, None, "the reward is missing or None"),
        (1, "1.0", "the reward is '1.0', expected a number"),
        (1, np.zeros(1), r"the reward is an array of shape \(1,\)"),
        (1, 10**400, "the reward is an integer beyond the largest float"),
        (4, None, "the info is None, expected a dict"),
        (4, [1], r"the info is \[1\], expected a dict"),
        (0, None, "the observation is None"),
        (0, np.array([None, 1, 2], object), "the observation has dtype object"),
    ],
)
def test_a_wrong_outcome_of_a_step_is_named(position, value, message) -> None:
    outcome = list(Wrong.outcome)
    outcome[position] = value
    with pytest.raises(UserError, match=message):
        play(type("Changed", (Wrong,), {"outcome": tuple(outcome)}))


@pytest.mark.parametrize("first", [OBSERVATION, None, (OBSERVATION, {}, 1), (OBSERVATION, None)])
def test_a_wrong_reset_is_named(first) -> None:
    with pytest.raises(UserError, match="reset"):
        play(type("Changed", (Wrong,), {"first": first}))


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, {"a": OBSERVATION}, "environment 0, at step 1 .*: b: among the agents, but without an observation"),
        (1, {"a": 0.0}, "b: the reward is missing or None"),
        (1, {"a": 0.0, "b": np.zeros(2)}, "b: the reward is an array"),
        (1, {"a": 0.0, "b": 0.0, "c": 0.0}, "there is a reward for c"),
        (1, None, "step returned the rewards None, expected a dict"),
        (2, {"a": False, "b": ""}, "b: terminated is '', expected a bool"),
        (2, {"a": False, "b": False, "c": True}, "there is a termination for c"),
        (2, {"a": False}, "b: terminated is missing, expected a bool"),
        (3, {}, "a: truncated is missing, expected a bool"),
        (2, False, "step returned the terminations False, expected a dict"),
        (4, {"a": {}, "b": None}, "b: the info is None, expected a dict"),
        (4, {"c": {}}, "there is an info for c"),
        (4, None, "step returned the infos None, expected a dict"),
    ],
)
def test_a_wrong_outcome_of_a_parallel_step_names_the_agent(position, value, message) -> None:
    def change(outcome: list[Any]) -> None:
        outcome[position] = value

    with pytest.raises(UserError, match=message) as caught:
        play(type("Changed", (WrongParallel,), {"change": staticmethod(change)}))
    of_all_agents = message.startswith(("step returned", "there is"))
    assert of_all_agents == (re.search(": [ab]: ", str(caught.value)) is None)


@pytest.mark.parametrize("returned", [(OBSERVATION, 0.0, False, {}), (OBSERVATION,) * 6, None])
@pytest.mark.parametrize("base", [Wrong, WrongParallel])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_step_with_another_number_of_values_ends_at_once_and_is_not_tried_again(base, returned, num_workers) -> None:
    changed = type("Changed", (base,), {"step": lambda self, action: returned})
    user_code.register(changed, "wrong:Environment")
    with VectorEnv(PythonEnv(name="wrong:Environment"), 2, num_workers, num_batches=1, restarts=Restarts(3)) as env:
        env.reset()
        batch = env.recv()
        env.send(batch, np.zeros(batch.buffers.actions.shape, np.int64))
        with pytest.raises(UserError, match="step must return observation, reward, terminated, truncated and info"):
            env.recv()
        assert env.restarts.count == 0


@pytest.mark.parametrize("check", ["shapes", "strict"])
@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (gymnasium.spaces.Discrete(5), 5, "the observation is 5, expected an integer"),
        (gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)] * 2), (1,), r"the observation\[1\] is missing"),
        (gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)] * 2), (1, 3), r"the observation\[1\] is 3, expected"),
    ],
)
def test_messages_name_the_keys_of_the_environments_own_observation(space, value, message, check) -> None:
    """Policies see these spaces with the previous action beside them."""
    environment = type("Cards", (Wrong,), {"observation_space": space, "first": (value, {})})
    with pytest.raises(UserError, match=message):
        play(environment, check)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("base", [Wrong, WrongParallel])
def test_an_environment_that_fails_to_close_is_a_warning_and_the_others_are_closed(
    base, num_workers, tmp_path, capfd
) -> None:
    closed = tmp_path / "closed"

    class Stuck(base):
        def close(self) -> None:
            if closed.exists():  # before a run, this would be refused
                with closed.open("a") as file:
                    file.write("x")
                raise GeneratorExit

    user_code.register(Stuck, "wrong:Stuck")
    env = VectorEnv(PythonEnv(name="wrong:Stuck"), 2, num_workers=num_workers)
    env.reset()
    closed.touch()
    env.close()
    assert closed.read_text() == "xx"
    assert "Traceback" not in capfd.readouterr().err
