"""Make the task harder while the agent learns: a hook is called after every epoch."""

import sys

import engram


def harder(run, record):
    """The delay grows as soon as the agent names nine of ten cues."""
    if record["return"] and record["return"] > 0.9:
        harder.delay = min(harder.delay + 5, 40)
        print(f"step {record['steps']}: delay {harder.delay}")
    return {"delay": harder.delay}


harder.delay = 5
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
run = engram.train("recall", total_timesteps=steps, run="curriculum", on_epoch=harder, **{"env.delay": 5})
print("mean return with a delay of 40:", run.evaluate(episodes=100, **{"env.delay": 40}).returns.mean)
