"""Parity: `agent=NAME` and `py_agent=NAME` are one network in two forms, and weights can go from either to the other.

yaml = make_policy(spec, agent_settings)      # agent=fast
python = make_policy(spec, PyAgent(name="fast"))  # py_agent=fast
copy_weights(yaml, python)                    # now they act and learn alike; copy_weights(python, yaml) as well
"""

import torch
from torch import nn

from engram.agent.actions import Gaussian
from engram.agent.components.policy import ComponentPolicy
from engram.agent.policies.base import Policy

PLACES = {  # component of our YAML policies -> where the same module is in the Python ones
    "cnn1": "encoder.conv1",
    "cnn2": "encoder.conv2",
    "fc1": "encoder.linear1",
    "fc2": "encoder.linear2",
    "embedded": "encoder.embed",
    "cross": "encoder.cross",
    "relate": "encoder.relate",
    "from_vector": "encoder",
    "from_image": "encoder",
    "_core_": "lstm",
    "critic": "critic.hidden",
    "_value_": "critic.value",
    "actor": "actor.hidden",
    "_action_embeds_": "actor.embedding",
    "_action_": "actor.scores",
}


@torch.no_grad()
def copy_weights(source: Policy, target: Policy) -> None:
    """Give `target` the weights of `source`, the same network in either form; raises `ValueError` if it is another."""
    given, taken = python_parameters(source), python_parameters(target)
    differences = [f"{name} is in only one of the two" for name in sorted(given.keys() ^ taken.keys())]
    differences += [
        f"{name} is {list(given[name].shape)} in the source and {list(taken[name].shape)} in the target"
        for name in given.keys() & taken.keys()
        if given[name].shape != taken[name].shape
    ]
    if differences:
        raise ValueError(f"these are not the same network: {'; '.join(differences)}")
    for name, parameter in taken.items():
        parameter.copy_(given[name])


def python_parameters(policy: Policy) -> dict[str, nn.Parameter]:
    """The parameters of a policy by the names they have in its Python form."""
    if not isinstance(policy, ComponentPolicy):
        return dict(policy.named_parameters())
    places = PLACES | {"_action_": "actor.output"} if isinstance(policy.action_space, Gaussian) else PLACES
    return {
        f"{places.get(component, component)}.{name}": parameter
        for component, module in policy.components.items()
        for name, parameter in module.named_parameters()
    }
