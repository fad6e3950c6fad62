"""Makes policies from settings: bundled ones by name, your own by `file.py:Class` or `module:Class`, or from YAML."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from engram.agent.policies.base import Policy, warn_of_unused
from engram.agent.settings import POLICIES, Agent, PyAgent
from engram.env.errors import explained
from engram.env.spec import EnvSpec
from engram.nearest import suggestion
from engram.settings import UserError


def make_policy(spec: EnvSpec, settings: PyAgent | Agent) -> Policy:
    """The policy described by these settings, sized for this environment."""
    if isinstance(settings, Agent):
        from engram.agent.components.policy import ComponentPolicy

        with explained(f"agent: {settings.name} could not be made"):
            return ComponentPolicy(spec, settings)
    policy_class = find_class(settings.name)
    with explained(f"py_agent: {settings.name} could not be made"):
        policy = _construct(policy_class, spec, settings)
    for option in ("previous", "critic_only"):
        if getattr(settings, option) and not getattr(policy, option, None):
            raise UserError(
                f"py_agent.{option}: {policy_class.__name__} does not hand it on to LSTMWrapper: let __init__ take "
                "**kwargs and give them to super().__init__"
            )
    return policy


def find_class(name: str) -> type[Policy]:
    """The policy class of this name. Naming a file runs it."""
    location, _, class_name = POLICIES.get(name, name).rpartition(":")
    if not location:
        hint = suggestion(name, POLICIES, otherwise=f"; choose from {', '.join(POLICIES)}.")
        raise UserError(f"py_agent: no policy is called {name}{hint} Your own: py_agent=path/to/file.py:ClassName")
    module = load_module(location)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        hint = suggestion(class_name, classes, otherwise=f"; it has {', '.join(classes[:5]) or 'none'}")
        raise UserError(f"py_agent: {location} has no class {class_name}{hint}")
    if not issubclass(found, Policy):
        raise UserError(f"py_agent: {class_name} in {location} must be a subclass of engram.LSTMWrapper to be trained")
    return found


def load_module(location: str) -> ModuleType:
    """The module at `path/to/file.py`, or named `package.module`."""
    return _from_file(Path(location)) if location.endswith(".py") else _from_package(location)


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


def _from_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise UserError(f"py_agent: no such file: {path}")
    name = f"engram_user_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    with explained(f"py_agent: {path} could not be loaded"):
        module_spec.loader.exec_module(module)
    return module


def _from_package(name: str) -> ModuleType:
    with explained(f"py_agent: {name} could not be imported"):
        return importlib.import_module(name)
