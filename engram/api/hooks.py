"""Hooks: a user's function `on_epoch(run, record)`, called after every epoch, which may change the run."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from engram.api.run import Run
from engram.config.evaluation import with_env
from engram.config.overrides import from_python
from engram.config.run import RunSettings
from engram.config.validation_errors import describe_errors
from engram.env import user_code
from engram.env.errors import explained
from engram.env.settings import EnvSettings
from engram.nearest import suggestion
from engram.settings import SettingsError, UserError
from engram.training.schedule import SCHEDULABLE

if TYPE_CHECKING:
    from engram.training.state import HookResult

Hook = Callable[..., Any]


class LiveRun(Run):
    """The run that a hook gets: it can be stopped, and its scheduled settings changed."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings.directory)
        self.stopping = False
        self.values: dict[str, float] = {}  # changed settings, by their names below trainer

    def stop(self) -> None:
        """End training after this epoch, with a checkpoint."""
        self.stopping = True

    def set(self, name: str, value: float) -> None:
        """Change a setting from the next epoch on, e.g. `run.set("ppo.ent_coef", 0.001)`.

        Any number below `trainer.ppo`, `trainer.optimizer` and `trainer.prioritized` can change. It replaces a
        schedule of that setting.
        """
        name = name.removeprefix("trainer.")
        trainer = self.settings.trainer
        sections = {section: dict(getattr(trainer, section)) for section in SCHEDULABLE}
        numbers = [
            f"{section}.{key}"
            for section, part in sections.items()
            for key, each in part.items()
            if isinstance(each, float)
        ]
        if name not in [*numbers, "ppo.ent_coef"]:  # ent_coef is null by default, so it is not among the numbers
            hint = suggestion(name, numbers, otherwise=f": choose from {', '.join(numbers)}")
            raise UserError(f"hooks: trainer.{name} cannot be changed during a run{hint}")
        section, _, key = name.partition(".")
        content = self.settings.model_dump(mode="json")
        content["trainer"][section][key] = value
        try:
            changed = RunSettings.model_validate(content)
        except ValidationError as error:
            raise SettingsError([f"hooks: {line}" for line in describe_errors(error).values()]) from None
        self.values[name] = getattr(getattr(changed.trainer, section), key)


def find_hook(settings: RunSettings) -> Hook | None:
    """The hook that the settings name."""
    return None if settings.hooks is None else check_hook(user_code.find(settings.hooks, "hooks"))


def check_hook(hook: Any) -> Hook:
    """Raise unless a hook can be called with the run and the record of an epoch."""
    name = _name(hook)
    if not callable(hook):
        raise UserError(f"hooks: {hook!r} is not a function: expected on_epoch(run, record)")
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError as error:
        raise UserError(f"hooks: {name} is called as {name}(run, record): {error}") from None
    except ValueError:  # a function of C without a signature
        pass
    return hook


def epoch_callback(
    settings: RunSettings, hook: Hook | None, interrupted: Callable[[], bool]
) -> "Callable[[Any], HookResult]":
    """The callback of training: calls the hook with the metrics of an epoch and returns the changes it asks for."""
    from engram.training.state import HookResult

    run = LiveRun(settings)

    def on_epoch(record: Any) -> HookResult:
        env = None
        if hook is not None:
            with explained(f"hooks: {_name(hook)} failed"):
                env = _environment(settings, hook, hook(run, dict(record)))
        return HookResult(run.stopping or interrupted(), run.values, env)

    return on_epoch


def _environment(settings: RunSettings, hook: Hook, returned: Any) -> EnvSettings | None:
    """The run's environment settings with those that a hook returned."""
    if returned is None:
        return None
    if not isinstance(returned, Mapping):
        raise UserError(
            f"hooks: {_name(hook)} returned {returned!r}: expected None, or settings of the environment by name"
        )
    named = {f"env.{str(name).removeprefix('env.')}": value for name, value in returned.items()}
    return with_env(settings, [*from_python(named)]).env


def _name(hook: Any) -> str:
    return getattr(hook, "__name__", type(hook).__name__)
