"""Acting with a trained agent."""

import gymnasium
import numpy as np
import pytest
from api.echo import Echo

import engram
from engram.api.make_env import row_spaces
from engram.api.observations import ObservationRows
from engram.env.registry import make_spec
from engram.env.settings import Gym


def observations(rows: int, seed: int = 0):
    random = np.random.default_rng(seed)
    return {"bit": random.integers(2, size=rows), "clock": random.random((rows, 1), np.float32)}


def test_a_plain_loop_runs(run):
    env, agent = Echo(), engram.load(run)
    observation, _ = env.reset(seed=1)
    for _ in range(20):
        observation, _, terminated, truncated, _ = env.step(agent.act(observation))
        if terminated or truncated:
            observation, _ = env.reset()
            agent.reset()


def test_every_row_has_its_own_memory(run):
    together, alone = engram.load(run), engram.load(run)
    for step in range(5):
        batch = observations(3, step)
        actions = together.act(batch, deterministic=True)
        single = {"bit": batch["bit"][1], "clock": batch["clock"][1]}
        assert actions.shape == (3,)
        assert alone.act(single, deterministic=True) == actions[1]


def test_reset_and_starts_forget(run):
    agent, first = engram.load(run), {"bit": 1, "clock": [0.5]}
    state = agent.predict(first)[1]
    agent.act(first)
    agent.reset()
    _, after = agent.predict(first, state=None)
    _, started = agent.predict(first, state=state, episode_start=True)
    _, went_on = agent.predict(first, state=state, episode_start=False)
    np.testing.assert_array_equal(after[0], state[0])
    np.testing.assert_array_equal(started[0], state[0])
    assert np.abs(went_on[0] - state[0]).max() > 0


def test_act_and_predict_agree(run):
    agent, state = engram.load(run), None
    for step in range(5):
        starts = np.array([step == 3, False])
        action, state = agent.predict(observations(2, step), state, starts, deterministic=True)
        np.testing.assert_array_equal(action, agent.act(observations(2, step), starts, deterministic=True))


def test_an_agent_that_reads_the_step_before_gets_it(tmp_path):
    from api.tiny import SMALL

    previous = {"py_agent.previous": ["action", "reward"], "env.reward_scale": 0.1}
    run = engram.train("CartPole-v1", total_timesteps=64, run="x", runs_dir=tmp_path, **SMALL, **previous)
    agent, observation = engram.load(run), np.zeros(4)
    agent.act(observation)
    with pytest.raises(engram.UserError, match="rewards: this policy reads the previous reward"):
        agent.act(observation)
    seen = []
    agent.policy.register_forward_pre_hook(lambda policy, inputs: seen.append(inputs[0]["previous_rewards"].item()))
    agent.act(observation, rewards=1.0)
    assert seen == [pytest.approx(0.1)]  # scaled as in training


def test_a_list_of_observations_is_a_batch(run):
    agent = engram.load(run, seed=1)
    singles = [{"bit": 0, "clock": [0.0]}, {"bit": 1, "clock": [0.2]}]
    assert agent.act(singles).shape == (2,)


def test_a_seed_makes_sampled_actions_reproducible(run):
    one, two = (engram.load(run, seed=5) for _ in range(2))
    assert [*one.act(observations(20))] == [*two.act(observations(20))]


def test_sb3_evaluates_our_agents(cartpole):
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    from stable_baselines3.common.monitor import Monitor

    env = Monitor(gymnasium.make("CartPole-v1"))
    mean, _ = evaluation.evaluate_policy(engram.load(cartpole), env, n_eval_episodes=3)
    assert 5 < mean < 200


def test_an_agent_plays_cartpole_while_it_is_recorded(cartpole, tmp_path):
    pytest.importorskip("pygame")
    pytest.importorskip("moviepy")
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env = gymnasium.wrappers.RecordVideo(env, str(tmp_path / "video"), disable_logger=True)
    agent, done = cartpole.load(), False
    observation, _ = env.reset(seed=1)
    while not done:
        observation, _, terminated, truncated, _ = env.step(agent.act(observation))
        done = terminated or truncated
    env.close()
    assert [*(tmp_path / "video").glob("*.mp4")]


def test_transformations_of_training_are_applied_to_plain_observations(tmp_path):
    from api.tiny import SMALL

    wrappers = {"env.wrappers": ["mask_velocity"]}
    run = engram.train("CartPole-v1", total_timesteps=64, run="x", runs_dir=tmp_path, **SMALL, **wrappers)
    agent = engram.load(run)
    moving, still = np.array([0.1, 5.0, 0.1, -5.0]), np.array([0.1, 0.0, 0.1, 0.0])
    np.testing.assert_array_equal(agent.predict(moving)[1][0], agent.predict(still)[1][0])


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros(5), r"observation: an array of shape \(5,\) is neither one observation \(shape \(4,\) of float32\)"),
        (np.zeros((2, 5)), r"an array of shape \(2, 5\)"),
        (np.zeros((0, 4)), r"an array of shape \(0, 4\) is neither"),
        ((np.zeros(4), {}), r"env.reset\(\) returns \(observation, info\): give the first"),
        ("text", "observation: str text is neither"),
        (None, "observation: NoneType None is neither"),
        ({"a": 1}, "observation: a mapping of a: the number 1 is neither"),
    ],
)
def test_a_wrong_observation_is_described(cartpole, observation, message):
    with pytest.raises(engram.UserError, match=message):
        engram.load(cartpole).act(observation)


def test_other_mistakes_in_acting(cartpole):
    agent = engram.load(cartpole)
    agent.act(np.zeros((2, 4)))
    for call, message in (
        (lambda: agent.act(np.zeros((3, 4))), r"act: got 3 rows, expected 2 as before: call agent.reset\(\)"),
        (lambda: agent.act(np.zeros((2, 4)), starts=[True]), "starts: expected one true or false for each of 2 rows"),
        (lambda: agent.predict(np.zeros(4), state=3), "state: expected what predict returned"),
        (lambda: agent.predict(np.zeros(4), state=(np.zeros((2, 1, 1)),)), r"state: .*got \[\(2, 1, 1\)\]"),
        (lambda: engram.load("nowhere/x"), "run: there are no runs in nowhere"),
        (lambda: engram.load(cartpole, checkpoint="best"), "checkpoint: .* has no best checkpoint yet"),
        (lambda: engram.load(5), "run: 5 is of type int: give the directory of a run"),
        (lambda: engram.load(cartpole, seed="x"), "seed: 'x' is not a whole number from 0"),
        (lambda: engram.load(cartpole, device="cpuu"), "device: 'cpuu' is not one of auto, cpu.*did you mean cpu"),
        (lambda: agent.act(np.full((2, 4), np.nan)), "observation: has NaN or infinity"),
        (
            lambda: agent.act(np.zeros((2, 4)), action_masks=[[1, 0]] * 2),
            "action_masks: CartPole-v1 had no",
        ),
    ):
        with pytest.raises(engram.UserError, match=message):
            call()


@pytest.mark.slow
def test_an_exported_agent_does_what_the_agent_does(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    agent = engram.load(run)
    path = agent.export(tmp_path / "agent.onnx")
    session = onnxruntime.InferenceSession(path)
    assert {"starts", "action"} <= {each.name for each in (*session.get_inputs(), *session.get_outputs())}
    agent.act(observations(2))  # exporting leaves the agent as it was


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Blackjack-v1"])
def test_the_agent_adds_the_action_before_to_plain_symbols(name, tmp_path):
    run = engram.train(name, total_timesteps=256, run="symbols", runs_dir=str(tmp_path), progress=False)
    agent, env = run.load(seed=1), gymnasium.make(name)
    observation, _ = env.reset(seed=1)
    state, start = None, True
    for _ in range(20):
        action, state = agent.predict(observation, state, start, deterministic=True)
        assert action == agent.act(observation, starts=start, deterministic=True)
        part = agent.policy.env_spec.packing.views(agent._observations._rows)["previous_action"]
        assert part.sum() == (0 if start else 1)
        observation, _, terminated, truncated, _ = env.step(action)
        start = terminated or truncated
        if start:
            observation, _ = env.reset()


def test_masks_that_are_missing_are_asked_for():
    settings = Gym(id="Taxi-v4")
    rows = ObservationRows(row_spaces(settings), make_spec(settings))
    with pytest.raises(engram.UserError, match=r"call act\(observation, action_masks=info\['action_mask'\]\)"):
        rows.convert(7)
    rows.convert(7, action_masks=np.ones(6, np.int8))


def test_minigrids_observations_are_taken_as_they_are(tmp_path):
    pytest.importorskip("minigrid")
    name = "minigrid:MiniGrid-DoorKey-5x5-v0"
    engram.train(name, total_timesteps=256, run="door", runs_dir=tmp_path, progress=False)
    agent, env = engram.load(tmp_path / "door"), gymnasium.make(name)
    observation, _ = env.reset(seed=1)
    both = agent.act([observation, observation], deterministic=True)
    agent.reset()
    assert agent.act(observation, deterministic=True) == both[0] == both[1]
