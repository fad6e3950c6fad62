"""Train an agent that must remember, evaluate it, and act with it in a loop of your own."""

import sys

import engram

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
run = engram.train("recall", total_timesteps=steps, run="first", **{"env.delay": 10})
print("mean return over 100 episodes:", run.evaluate(episodes=100).returns.mean)

agent, env = run.load(), engram.make_env("recall", delay=10)
observation, _ = env.reset(seed=1)
done = False
while not done:
    observation, reward, terminated, truncated, _ = env.step(agent.act(observation, deterministic=True))
    done = terminated or truncated
print("one episode:", reward)
