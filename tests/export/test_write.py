"""Exported files: in onnxruntime and torch.export they do what the policy does, and they need no Engram."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from engram.export import check, program, write
from engram.export.program import FORMATS, INPUTS, PolicyStep, trace
from engram.export.write import describe, output_names
from engram.settings import UserError

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "export.md"

HOUSE = ("env=gym", "env.id=house:House-v0")  # images, symbols, vectors and text as parts, and action masks
INPUTS_AND_CRITIC = ("py_agent.previous=[action,reward]", "py_agent.critic_only=[camera,position]")
STEPS = 60  # of the comparison; `engram export` makes 1,000
CORES = ("mingru", "lru", "attention")
CORE_STEPS = 300  # their environment is quick, and their memory lasts for long
YAML_POLICIES = ("fast", "latent_attn_tiny", "latent_attn_small", "latent_attn_med")
READY = {
    **{name: ("env=tmaze", f"py_agent={name}") for name in (*YAML_POLICIES, "example")},
    **{f"{name}, yaml": ("env=tmaze", f"agent={name}") for name in YAML_POLICIES},
}
POLICIES = {
    **READY,
    "mingru": ("env=recall", "py_agent.core=mingru"),
    "lru": ("env=recall", "py_agent.core=lru"),
    "attention": ("env=recall", "py_agent.core=attention", "py_agent.window=8"),
    "parts": ("env=gym", "env.id=minigrid:MiniGrid-Empty-5x5-v0"),
    "continuous": ("env=gym", "env.id=Pendulum-v1"),
    "image": ("env=gym", "env.id=screen:Screen-v0"),
    # With masks; the GRU too is exported here only.
    "everything, critic's memory": (*HOUSE, *INPUTS_AND_CRITIC, "py_agent.critic_memory=true", "py_agent.core=gru"),
    "everything, yaml": (*HOUSE, "agent=fast"),
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "env" / "fakes"))


@pytest.fixture(scope="module")
def exported(make, tmp_path_factory) -> write.Export:
    agent, settings = make("env=recall", "py_agent.hidden_size=16")
    path = tmp_path_factory.mktemp("exported") / "policy.onnx"
    return write.export_agent(agent, path, "onnx", settings.env, origin={"run": "x", "steps": 7}, steps=60)


def remembering(exported: program.ExportedStep, chosen: list[np.ndarray]) -> program.ExportedStep:
    """The exported step, which appends the actions that it takes."""

    def step(*inputs):
        outputs = exported(*inputs)
        chosen.append(outputs[0])
        return outputs

    return step


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_acts_the_same_in_both_formats(make, tmp_path, name):
    agent, settings = make(*POLICIES[name])
    step = PolicyStep(agent)
    graph, about = trace(step), describe(agent, step, {})
    steps = CORE_STEPS if name in CORES else STEPS
    for form in FORMATS.values():
        path = tmp_path / f"policy{form.suffix}"
        form.write(graph, [*step.fields, *INPUTS], output_names(agent), about, path)
        chosen: list[np.ndarray] = []
        found = check.compare(agent, step, remembering(form.load(path), chosen), settings.env, steps=steps)
        assert found.steps == steps
        assert found.resets > found.decisions // found.steps  # beyond the first step's
        assert found.difference < 1e-4
        assert found.ties <= found.decisions // 100
        if name in READY:  # one action throughout would prove little
            assert len(np.unique(np.concatenate(chosen), axis=0)) > 1


def test_the_comparison_counts_what_it_compared(exported):
    found = exported.agreement
    assert (found.steps, found.decisions) == (60, 60 * check.ENVIRONMENTS)
    assert found.ties == 0
    assert found.difference < 1e-5


def test_the_number_of_rows_is_called_batch(exported):
    graph = onnx.load(exported.path).graph
    tensors = [*graph.input, *graph.output]
    assert {tensor.type.tensor_type.shape.dim[0].dim_param for tensor in tensors} == {"batch"}


def test_the_metadata_is_inside_the_file(exported):
    props = {prop.key: prop.value for prop in onnx.load(exported.path).metadata_props}
    about = json.loads(props["engram"])
    assert about == exported.metadata
    assert (about["run"], about["steps"], about["environment"]) == ("x", 7, "recall")
    assert [tensor["name"] for tensor in about["inputs"]] == ["observations", "memory", "starts"]
    assert [tensor["name"] for tensor in about["outputs"]] == ["action", "log_probs", "value", "next_memory"]
    assert about["actions"]["n"] == 4
    assert about["memory"]["size"] == 32
    assert {"mean", "variance"} <= next(iter(about["normalisation"]["observations"].values())).keys()


def test_the_documented_loader_runs_where_engram_cannot_be_imported(exported):
    loader = re.search(r"```python\n(.*?)```", DOCUMENTATION.read_text(encoding="utf-8"), re.DOTALL)
    assert loader is not None
    assert len([line for line in loader[1].splitlines() if line.strip()]) <= 10
    script = "\n".join(
        [
            "import sys",
            "sys.modules['engram'] = sys.modules['torch'] = None",  # importing either fails from here on
            loader[1],
            "observation = np.eye(6, dtype=np.float32)[0]",
            "first = [int(act(observation, start=step == 0)) for step in range(5)]",
            "again = [int(act(observation, start=step == 0)) for step in range(5)]",
            "assert first == again, (first, again)",
            "print(first)",
        ]
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=exported.path.parent, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all(action in range(4) for action in json.loads(result.stdout))


def test_a_file_that_does_something_else_is_not_left_behind(make, tmp_path, monkeypatch):
    agent, settings = make("env=recall", "py_agent.hidden_size=16")
    load = program.load_torch

    def forgetful(path):
        step = load(path)
        return lambda observations, memory, starts: step(observations, memory * 0, starts)

    monkeypatch.setitem(FORMATS, "torch", FORMATS["torch"]._replace(load=forgetful))
    with pytest.raises(UserError, match="disagrees with the original at step 2"):
        write.export_agent(agent, tmp_path / "policy.pt2", "torch", settings.env, steps=40)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_cannot_be_traced_is_one_message(make):
    agent, _ = make("env=recall", "py_agent.hidden_size=16")
    step = PolicyStep(agent)
    step.agent.policy.encode_observations = lambda observations: observations.sum().item() * torch.ones(3, 128)
    with pytest.raises(UserError, match="Fast cannot be traced"):
        trace(step)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(program, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs onnx, onnxscript, onnxruntime: pip install 'engram-rl\[export\]'"):
        program.require_packages("onnx")
    program.require_packages("torch")


def test_the_suffix_says_the_format():
    assert write.choose_format(None, None) == "onnx"
    assert write.choose_format(Path("a.pt2"), None) == "torch"
    assert write.choose_format(Path("a.bin"), "torch") == "torch"
    with pytest.raises(UserError, match=r"a\.bin does not say its format"):
        write.choose_format(Path("a.bin"), None)
    with pytest.raises(UserError, match="format: 'onx' is not one of onnx, torch"):
        write.choose_format(Path("a.onnx"), "onx")
    with pytest.raises(UserError, match=r"looks like --format onnx.*name it a\.pt2"):
        write.choose_format(Path("a.onnx"), "torch")
