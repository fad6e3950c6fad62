"""Does the task need memory? Train the same network with and without it, and compare."""

import sys

import engram

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
for memory in ("carry", "off"):
    run = engram.train("recall", total_timesteps=steps, run=f"memory_{memory}", **{"trainer.memory": memory})
    returns = run.evaluate(episodes=200).returns
    print(f"memory {memory}: mean return {returns.mean:.2f} (95% interval {returns.low:.2f} to {returns.high:.2f})")
