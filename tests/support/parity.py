"""Parity: `agent=NAME` (YAML) and `py_agent=NAME` (Python) are the same network, and weights can be copied both ways.

yaml = make_policy(spec, agent_settings)  # agent=fast
python = make_policy(spec, PyAgent(name="fast"))  # py_agent=fast
copy_weights(yaml, python)  # now both compute the same
"""

import torch
from torch import nn

from engram.agent.components.policy import ComponentPolicy
from engram.agent.policies.base import Policy

PYTHON_NAMES = {  # component of a bundled YAML policy -> the same module in the Python policy
    "cnn1": "encoder.conv1",
    "cnn2": "encoder.conv2",
    "fc1": "encoder.linear1",
    "fc2": "encoder.linear2",
    "embedded": "encoder.embed",
    "cross": "encoder.cross",
    "relate": "encoder.relate",
    "from_image": "encoder",
    "read1": "encoder.linear1",
    "read2": "encoder.linear2",
    "parts": "encoder.reader",
    "_core_": "core",
    "critic": "critic.hidden",
    "small_critic": "critic.hidden",
    "_value_": "critic.value",
    "actor": "actor.hidden",
    "small_actor": "actor.hidden",
    "_action_embeds_": "actor.embedding",
    "scores": "actor.scores",
}


@torch.no_grad()
def copy_weights(source: Policy, target: Policy) -> None:
    """Copy the weights of `source` to `target`. Raises `ValueError` if they are not the same network."""
    copied, replaced = python_parameters(source), python_parameters(target)
    differences = [f"{name} is in only one of the two" for name in sorted(copied.keys() ^ replaced.keys())]
    differences += [
        f"{name} is {list(copied[name].shape)} in the source and {list(replaced[name].shape)} in the target"
        for name in copied.keys() & replaced.keys()
        if copied[name].shape != replaced[name].shape
    ]
    if differences:
        raise ValueError(f"not the same network: {'; '.join(differences)}")
    for name, parameter in replaced.items():
        parameter.copy_(copied[name])


def python_parameters(policy: Policy) -> dict[str, nn.Parameter]:
    """The parameters of a policy, by their names in its Python form."""
    if not isinstance(policy, ComponentPolicy):
        return dict(policy.named_parameters())
    names = PYTHON_NAMES | ({} if "_action_embeds_" in policy.components else {"scores": "actor.output"})
    return {
        f"{names.get(component, component)}.{name}": parameter
        for component, module in policy.components.items()
        for name, parameter in module.named_parameters()
    }
