"""What `engram eval` is asked for: a stored run, a checkpoint of it, how to play. Checked before torch is loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from omegaconf import OmegaConf
from pydantic import Field, ValidationError

from engram.config import names
from engram.config.explain import explain
from engram.config.groups import compose_groups, own_choice
from engram.config.load import SETTINGS_FILE, load_run
from engram.config.run import RunSettings
from engram.config.words import Word, check_name, split, value
from engram.nearest import suggestion
from engram.settings import Settings, SettingsError, UserError
from engram.training.settings import EVALUATION_SEED, Positive, Size, Workers


class EvalSettings(Settings):
    """What to evaluate, and how."""

    run: str
    runs_dir: str = "runs"
    checkpoint: str = "latest"  # or best, or the path of one
    episodes: Positive = 100
    greedy: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**32)] = EVALUATION_SEED
    num_envs: Size = 32
    num_workers: Workers = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"


class EvalRequest(NamedTuple):
    directory: Path  # the run's
    how: EvalSettings
    run: RunSettings  # as stored, but for the environment if another was asked for


def load_evaluation(words: Sequence[str]) -> EvalRequest:
    """What a command line asks for; raises `UserError` with everything that is wrong with it."""
    given = {word.name: word for word in map(split, words)}  # the last one counts
    of_env = [word for name, word in given.items() if name.partition(".")[0] == "env"]
    how = _how({name: word.text for name, word in given.items() if word not in of_env})
    directory = find_run(how.run, Path(how.runs_dir))
    return EvalRequest(directory, how, with_env(load_run(directory), of_env))


def find_run(name: str, runs_dir: Path) -> Path:
    """The directory of a run, by its name or its path; raises with the nearest name."""
    for directory in (runs_dir / name, Path(name)):
        if (directory / SETTINGS_FILE).is_file():
            return directory
    there = sorted(file.parent.name for file in runs_dir.glob(f"*/{SETTINGS_FILE}"))
    if not there:
        raise UserError(f"run: there are no runs in {runs_dir}: train one, or say where they are with runs_dir=")
    raise UserError(f"run: no run '{name}' in {runs_dir}{suggestion(name, there) or _listed(there)}")


def with_env(run: RunSettings, words: Sequence[Word]) -> RunSettings:
    """The settings of a run in another environment (`env=NAME`), or in its own with some settings changed."""
    if not words:
        return run
    content = run.model_dump(mode="json", exclude={"agent" if run.agent is None else "py_agent"})
    for word in words:
        if word.name == "env":
            content["env"] = _chosen(word.text)
    usable, problems = names.usable(content["env"].get("kind"), None), []
    tree = OmegaConf.create({"env": content["env"]})
    for word in words:
        if word.name != "env":
            try:
                check_name(word.name, usable)
                OmegaConf.update(tree, word.name, value(word), merge=True, force_add=True)
            except UserError as error:
                problems.append(str(error))
    try:
        changed = RunSettings.model_validate({**content, "env": OmegaConf.to_container(tree)["env"]})  # type: ignore
    except ValidationError as error:
        problems += explain(error).values()
    if problems:
        raise SettingsError(problems)
    return changed


def _how(given: dict[str, str]) -> EvalSettings:
    known = EvalSettings.model_fields
    problems = [f"{name}: no such option{suggestion(name, [*known, 'env'])}" for name in given if name not in known]
    try:
        how = EvalSettings.model_validate({name: text for name, text in given.items() if name in known})
    except ValidationError as error:
        problems += explain(error).values()
    if problems:
        raise SettingsError(problems)
    return how


def _chosen(choice: str) -> dict[str, Any]:
    try:
        own = own_choice("env", choice)
    except UserError as error:
        raise UserError(f"env: {error}") from None
    tree = OmegaConf.to_container(compose_groups({"env": choice}, {} if own is None else {"env": own}))
    assert isinstance(tree, dict)
    return tree["env"]


def _listed(there: Sequence[str]) -> str:
    shown = ", ".join(there[:5])
    return f"; there are {shown}{', …' if len(there) > 5 else ''}"
