"""A mettagrid configuration file, JSON or YAML, checked before anything is built from it."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mettagrid.config.mettagrid_config import GameConfig, MettaGridConfig
from mettagrid.map_builder.random_map import RandomMapBuilder
from pydantic import ValidationError

from engram.settings import UserError
from engram.stored.files import MEGABYTE, UnreadableError, parse_json, parse_yaml, read_text

_MAX_BYTES = 4 * MEGABYTE
_MAX_DEPTH = 50
# A map names its builder and scenes by module; importing another module would run arbitrary code.
_BUILDERS = ("mettagrid.map_builder.", "mettagrid.mapgen.mapgen.", "mettagrid.mapgen.scenes.")
_READS_FILES = ("uri", "file")  # scenes that read another file, which would not be checked
_LIMITS = {"num_agents": 4096, "agents": 4096, "width": 1024, "height": 1024, "num_tokens": 4096, "instances": 1024}
_MAX_CELLS = 2**19
_MAX_COUNT = 10**6  # of anything else on a map
_UNION_MEMBER = re.compile(r"[A-Z]\w*(Value|Config|Filter|Mutation)|function-.*", re.DOTALL)  # in an error's location
_MAX_FEATURES = 255  # ids in a byte, without the one for padding


def read_world(path: str) -> MettaGridConfig:
    """Reads a world from a file. All problems are reported in one error, one line each.

    A policy gives one action per step and agent. Changing vibe is a second action, so it is disabled. A file that
    enables it, or talk, is refused.
    """
    data = _parse(Path(path))
    _refuse(path, [*_unsafe(data)])
    config = _validate(path, data)
    _refuse(path, [*_problems(config.game)])
    config.game.actions.change_vibe.enabled = False
    return config


def _parse(path: Path) -> Any:
    try:
        text = read_text(path, _MAX_BYTES)
        data = parse_json(text, str(path)) if path.suffix == ".json" else parse_yaml(text, str(path))
    except UnreadableError as error:
        raise UserError(f"env.path: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"env.path: {path} must hold the fields of a MettaGridConfig, not {type(data).__name__}")
    return data


def _validate(path: str, data: dict[str, Any]) -> MettaGridConfig:
    try:
        return MettaGridConfig.model_validate(data)
    except ValidationError as error:
        _refuse(path, _describe_errors(error))
        raise
    except (TypeError, ValueError, ImportError, AttributeError, AssertionError) as error:  # of a map builder's lookup
        raise UserError(f"env.path: {path}: game.map_builder: {error}") from error


def _describe_errors(error: ValidationError) -> list[str]:
    """One line for each field. Pydantic reports a union once for each of its types: those become one line."""
    lines, unions = [], dict[str, list[str]]()
    for problem in error.errors():
        names = [str(part) for part in problem["loc"]]
        member = next((index for index, name in enumerate(names) if _UNION_MEMBER.fullmatch(name)), None)
        if member is None:
            lines.append(f"{'.'.join(names)}: {problem['msg']}")
        else:
            unions.setdefault(".".join(names[:member]), []).append(names[member])
    for field, tried in unions.items():
        names = [name for name in dict.fromkeys(tried) if name.isidentifier()]
        lines.append(f"{field}: does not have the fields of {' or '.join(names)} of mettagrid.config")
    return lines


def _refuse(path: str, problems: list[str]) -> None:
    if problems:
        raise UserError(f"env.path: {path} is not a world to train in:\n" + "\n".join(f"  {line}" for line in problems))


def _unsafe(data: Any, where: str = "", depth: int = 0) -> Iterator[str]:
    """Problems that would be dangerous to build: foreign code, other files, and sizes that no machine could hold."""
    if depth > _MAX_DEPTH:
        yield f"{where[:100]}: nested more than {_MAX_DEPTH} levels deep"
    elif isinstance(data, dict):
        name = data.get("type")
        if isinstance(name, str) and "." in name and not name.startswith(_BUILDERS):
            yield f"{where}type: {name} is not a class of mettagrid's; only its own map builders are allowed"
        cells = [data[key] for key in ("width", "height", "instances") if isinstance(data.get(key), int)]
        if math.prod(cells) > _MAX_CELLS:
            yield f"{where}width: the map is too large: at most {_MAX_CELLS:,} cells"
        for key, value in data.items():
            if key in _READS_FILES and isinstance(value, str):
                yield f"{where}{key}: {value}: scenes from other files are not supported: write the map itself"
            limit = _LIMITS.get(str(key), _MAX_COUNT if "map_builder." in where and key != "seed" else 2**31 - 1)
            if isinstance(value, int | float) and abs(value) > limit:
                yield f"{where}{key}: {str(value)[:20]} is too large: at most {limit:,}"
            yield from _unsafe(value, f"{where}{key}.", depth + 1)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _unsafe(value, f"{where}{index}.", depth + 1)


def _problems(game: GameConfig) -> Iterator[str]:
    for side in ("width", "height"):
        size = getattr(game.obs, side)
        if size % 2 == 0 or not 3 <= size <= 15:
            yield f"game.obs.{side}: {size} cannot be centred on the agent: use an odd number from 3 to 15"
    if game.obs.token_dim != 3:
        yield f"game.obs.token_dim: a token is 3 numbers (location, feature, value), not {game.obs.token_dim}"
    if game.obs.num_tokens < 1:
        yield f"game.obs.num_tokens: must be 1 or more, not {game.obs.num_tokens}"
    if not 2 <= game.obs.token_value_base <= 256:
        yield f"game.obs.token_value_base: must be from 2 to 256, not {game.obs.token_value_base}"
    elif (kinds := len(game.id_map().features()) + len(game.id_map().tag_names())) > _MAX_FEATURES:
        yield f"game: resources and tags need {kinds} features, but a byte can number {_MAX_FEATURES}: use fewer"
    if game.agents and len(game.agents) != game.num_agents:
        yield f"game.agents: {len(game.agents)} are given, but game.num_agents is {game.num_agents}"
    if not game.actions.noop.enabled:
        yield "game.actions.noop.enabled: must be true: noop is always action 0, so all names would shift"
    if "change_vibe" in game.actions.model_fields_set and game.actions.change_vibe.enabled:
        yield "game.actions.change_vibe.enabled: must be false: it is a second action, and policies take one a step"
    if game.talk.enabled:
        yield "game.talk.enabled: must be false: policies have no action for it"
    if type(game.map_builder) is RandomMapBuilder.Config:
        yield from _overfull(game.map_builder)


def _overfull(builder: RandomMapBuilder.Config) -> Iterator[str]:
    """Counts that do not fit the map: RandomMapBuilder would silently halve them."""
    width, height = (max(0, side - 2 * builder.border_width) for side in (builder.width, builder.height))
    agents = builder.agents if isinstance(builder.agents, int) else sum(builder.agents.values())
    for name, count in builder.objects.items():
        if count < 0:
            yield f"game.map_builder.objects.{name}: must be 0 or more, not {count}"
    needed = agents + sum(builder.objects.values())
    if needed > width * height:
        yield (
            f"game.map_builder: the {width} x {height} cells inside its border hold {width * height} things, but there "
            f"are {needed} agents and objects: increase width and height, or use fewer"
        )
