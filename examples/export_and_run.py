"""Export a trained agent and run it in onnxruntime, without Engram and without PyTorch."""

import sys

import numpy as np
import onnxruntime

import engram

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
engram.train("recall", total_timesteps=steps, run="exported")
engram.load("runs/exported").export("recall.onnx")  # compared with the agent over 1,000 steps first

session = onnxruntime.InferenceSession("recall.onnx")
memory = np.zeros((1, session.get_inputs()[1].shape[1]), np.float32)
env = engram.make_env("recall")
observation, _ = env.reset(seed=1)
start, reward = True, 0.0
while True:
    inputs = {"observations": observation[None], "memory": memory, "starts": np.array([start])}
    action, log_probs, value, memory = session.run(None, inputs)
    observation, reward, terminated, truncated, _ = env.step(action[0])
    start = False
    if terminated or truncated:
        break
print("reward of one episode:", reward)
