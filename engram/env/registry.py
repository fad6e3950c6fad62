"""The adapter module of each kind of environment, and specs and blocks made by it."""

import warnings
from importlib import import_module
from typing import Any, cast

from engram.env.block import Adapter, Block, Buffers
from engram.env.settings import EnvSettings, Gym, PettingZoo
from engram.env.spec import EnvSpec
from engram.settings import UserError

# Modules are imported on first use, so that unused simulators cost no time.
ADAPTERS: dict[str, str] = {
    "tmaze": "engram.env.mettagrid.adapter",
    "small": "engram.env.mettagrid.adapter",
    "arena": "engram.env.mettagrid.adapter",
    "navigation": "engram.env.mettagrid.adapter",
    "mettagrid": "engram.env.mettagrid.adapter",
    "gym": "engram.env.gymnasium",
    "python": "engram.env.python",
    "pettingzoo": "engram.env.pettingzoo",
    "recall": "engram.env.recall",
}


def make_spec(settings: Any) -> EnvSpec:
    return load_adapter(adapter_path(settings.kind)).spec(settings)


def make_block(settings: Any, env_ids: range, seed: int, buffers: Buffers) -> Block:
    return load_adapter(adapter_path(settings.kind)).block(settings, env_ids, seed, buffers)


def with_rendering(settings: EnvSettings) -> EnvSettings:
    """The settings with rendering turned on, if the environment supports it."""
    if not isinstance(settings, Gym | PettingZoo):
        return settings
    rendering = settings.model_copy(update={"kwargs": {**settings.kwargs, "render_mode": "rgb_array"}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            spec = make_spec(rendering)
            block = make_block(rendering, range(1), 0, Buffers.allocate(spec, spec.agents))
            try:
                block.reset()
                return settings if block.scene() is None else rendering
            finally:
                block.close()
        except Exception:  # many environments refuse the mode or lack a package for it, each with its own error
            return settings


def adapter_path(kind: str) -> str:
    if kind not in ADAPTERS:
        raise UserError(f"env.kind: unknown kind {kind!r}; expected one of {', '.join(sorted(ADAPTERS))}")
    return ADAPTERS[kind]


def load_adapter(path: str) -> Adapter:
    """Workers get the path instead of the kind, so that kinds added at run time work there too."""
    try:
        return cast(Adapter, import_module(path))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mettagrid":
            raise
        raise UserError(
            "env: tmaze, small, arena, navigation and mettagrid need the package mettagrid, which is not installed: "
            "pip install 'engram-rl[mettagrid]', or choose a different one, such as env=recall or env=CartPole-v1"
        ) from None
