"""Makes policies from settings: bundled ones by name, your own by `file.py:Class` or `module:Class`, or from YAML."""

import inspect

import torch
from gymnasium import spaces
from torch.nn.parameter import is_lazy

from engram.agent.event_counts import counted_parts
from engram.agent.observations import describe_observations
from engram.agent.policies.base import Policy, warn_of_unused
from engram.agent.settings import POLICIES, PyAgent, YamlAgent
from engram.env import user_code
from engram.env.errors import explained
from engram.env.spec import EnvSpec
from engram.nearest import suggestion
from engram.settings import UserError

PASSED_ON = {"previous": "previous_inputs", "critic_only": "critic_only", "counts": "event_counts"}  # option: attribute


def make_policy(spec: EnvSpec, settings: PyAgent | YamlAgent) -> Policy:
    """The policy described by these settings, sized for this environment."""
    settings = with_defaults(settings, spec)
    if isinstance(settings, YamlAgent):
        from engram.agent.components.policy import ComponentPolicy

        with explained(f"agent: {settings.name} could not be made"):
            return ComponentPolicy(spec, settings)
    policy_class = find_class(settings.name)
    with explained(f"py_agent: {settings.name} could not be made"):
        policy = _construct(policy_class, spec, settings)
        if "_modules" not in vars(policy):
            raise UserError(f"py_agent: {settings.name}: __init__ must call super().__init__(env, **kwargs) first")
    with explained(f"py_agent: {settings.name} failed ({describe_observations(spec)})"):
        _initialize_lazy_layers(policy)
    for option, attribute in PASSED_ON.items():
        if getattr(settings, option) and not getattr(policy, attribute, None):
            raise UserError(
                f"py_agent.{option}: {policy_class.__name__} does not pass it to LSTMWrapper: let __init__ take "
                "**kwargs and pass them to super().__init__"
            )
    return policy


def with_defaults(settings: PyAgent | YamlAgent, spec: EnvSpec) -> PyAgent | YamlAgent:
    """The settings of a YAML or bundled policy, with defaults that depend on the kind of observations.

    If observations have symbols, policies read the previous action: in a grid world, memory then knows where the agent
    turned and what it tried. If they are only symbols, as in card games, the core is an LRU, which learns much sooner
    than an LSTM how long ago something was seen, and policies count how often.
    """
    if isinstance(settings, PyAgent) and settings.name not in POLICIES:
        return settings
    changes: dict[str, object] = {}
    symbols = any(part.kind == "symbols" for part in spec.all_parts)
    if settings.previous is None and symbols and not isinstance(spec.single_action_space, spaces.Box):
        changes["previous"] = ["action"]
    if isinstance(settings, PyAgent) and settings.core is None:
        changes["core"] = spec.default_core
    if isinstance(settings, PyAgent) and settings.counts is None and spec.only_symbols and counted_parts(spec):
        changes["counts"] = True
    return settings.model_copy(update=changes)


def find_class(name: str) -> type[Policy]:
    """The policy class of this name. Naming a file runs it."""
    reference = POLICIES.get(name, name)
    if ":" not in reference:
        hint = suggestion(name, POLICIES, otherwise=f"; choose from {', '.join(POLICIES)}.")
        raise UserError(f"py_agent: no policy is called {name}{hint} Your own: py_agent=path/to/file.py:ClassName")
    found = user_code.find(reference, "py_agent")
    location, _, class_name = reference.rpartition(":")
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise UserError(f"py_agent: {class_name} in {location} must be a subclass of engram.LSTMWrapper to be trained")
    return found


def _construct(policy_class: type[Policy], spec: EnvSpec, settings: PyAgent) -> Policy:
    """The policy with its options. A class without `**kwargs` gets only the options it names."""
    arguments, parameters = settings.arguments, inspect.signature(policy_class).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return policy_class(spec, **arguments)
    policy = policy_class(spec, **{name: value for name, value in arguments.items() if name in parameters})
    policy.clip_range, policy.analyze_weights_interval = settings.clip_range, settings.analyze_weights_interval
    known = {"clip_range", "analyze_weights_interval", *parameters}
    defaults = PyAgent().arguments
    policy.unused_arguments = {
        name: value for name, value in arguments.items() if name not in known and value != defaults.get(name)
    }
    warn_of_unused(policy_class, policy.unused_arguments)
    return policy


@torch.no_grad()
def _initialize_lazy_layers(policy: Policy) -> None:
    """Let layers such as `nn.LazyLinear` read their sizes off one observation of zeros."""
    if not any(map(is_lazy, [*policy.parameters(), *policy.buffers()])):
        return
    flags = {name: torch.zeros(1, dtype=torch.bool) for name in ("dones", "truncateds")}
    first_row = torch.zeros(1, dtype=torch.long)
    training = policy.training
    policy.eval()  # batch normalisation cannot learn from one row
    policy(policy.get_agent_experience_spec().unsqueeze(0).update({**flags, "training_env_id_start": first_row}))
    policy.train(training)
    policy.reset_memory()
    if lazy := [name for name, parameter in policy.named_parameters() if is_lazy(parameter)]:
        raise UserError(f"{', '.join(lazy)}: lazy layers that forward does not call: give them sizes, or remove them")
