"""The built-in mettagrid worlds: settings in, a MettaGridConfig out."""

import numpy as np
from mettagrid.config.action_config import ActionsConfig, ChangeVibeActionConfig
from mettagrid.config.event_config import EventConfig, periodic
from mettagrid.config.filter import actorHas, isNot, targetHas
from mettagrid.config.game_value import stat
from mettagrid.config.handler_config import Handler
from mettagrid.config.mettagrid_config import (
    AgentConfig,
    GameConfig,
    GridObjectConfig,
    InventoryConfig,
    MettaGridConfig,
    ResourceLimitsConfig,
    WallConfig,
)
from mettagrid.config.mutation import logActorAgentStat, logStatToGame, updateActor, updateTarget, withdraw
from mettagrid.config.obs_config import GlobalObsConfig, ObsConfig
from mettagrid.config.reward_config import AgentReward, reward
from mettagrid.config.tag import typeTag
from mettagrid.map_builder.choice_ascii import ChoiceAsciiMapBuilder
from mettagrid.map_builder.map_builder import MapBuilderConfig
from mettagrid.map_builder.random_map import RandomMapBuilder

from engram.env.settings import MettagridWorld, Navigation, Room, TMaze, Workshop

DONE = "episode.done"  # the game stat that ends a T-maze
CARRY = 3  # ore or batteries an agent can hold
AGENT_TOKENS = 3  # of each agent in view: type, group and id; plus one per resource it holds
NO_CLOCK = GlobalObsConfig(episode_completion_pct=False, last_action=False, last_reward=False)
CLOCK_AND_ACTION = GlobalObsConfig(last_reward=False)  # mettagrid's last reward is 0 in every observation


def world(settings: MettagridWorld) -> MettaGridConfig:
    """The configuration of a built-in world. A new one at every call, since mettagrid modifies what it uses."""
    if isinstance(settings, TMaze):
        return _tmaze(settings)
    if isinstance(settings, Workshop):
        return _workshop(settings)
    if isinstance(settings, Navigation):
        return _navigation(settings)
    raise TypeError(f"{type(settings).__name__} is not the settings class of a built-in world")


def max_tokens_in_view(settings: MettagridWorld) -> int:
    """An upper bound on the tokens of one observation: everything that can come into view, all at once."""
    if isinstance(settings, TMaze):
        return AGENT_TOKENS + 2 * settings.window
    if isinstance(settings, Workshop):
        return _room_tokens(settings, resources=3, altar_tokens=1)
    if isinstance(settings, Navigation):
        return _room_tokens(settings, resources=1, altar_tokens=2)
    raise TypeError(f"{type(settings).__name__} is not the settings class of a built-in world")


def _tmaze(settings: TMaze) -> MettaGridConfig:
    """An agent walks from the cue to a junction with a goal on either side; the cue shows which of them pays.

    Only memory can carry the cue to the junction. The corridor is one cell wide, so the agent's position does not
    reveal the cue, and cue and goals are never in view together. No token shows the time or the last action: a policy
    without memory could encode the cue by waiting or bumping into a wall. Both goals have the same type, hence one tag.
    """
    width = settings.corridor
    maps = [
        [cue + "#" * width + north, "@" + "." * width + ".", "#" + "#" * width + south]
        for cue, north, south in (("1", "R", "W"), ("2", "W", "R"))
    ]
    return _world(
        settings,
        agents=1,
        resources=[],
        objects=[
            GridObjectConfig(name="cue_1"),
            GridObjectConfig(name="cue_2"),
            _goal("right"),
            _goal("wrong"),
        ],
        rewards={"goal.right": settings.right_reward, "goal.wrong": settings.wrong_reward},
        global_tokens=NO_CLOCK,
        map_builder=ChoiceAsciiMapBuilder.Config(
            map_options=maps, char_to_map_name={"1": "cue_1", "2": "cue_2", "R": "right", "W": "wrong"}
        ),
        end_episode_on_game_stats={DONE: 1},
    )


def _goal(which: str) -> GridObjectConfig:
    finish = Handler(mutations=[logActorAgentStat(f"goal.{which}"), logStatToGame(DONE)])
    return GridObjectConfig(name="goal", map_name=which, on_use_handler=finish)


def _workshop(settings: Workshop) -> MettaGridConfig:
    """A mine gives ore, a generator turns ore into a battery, an altar turns a battery into a heart."""
    return _world(
        settings,
        agents=settings.agents,
        resources=["ore", "battery", "heart"],
        objects=[
            _station("mine", Handler(filters=[isNot(actorHas({"ore": CARRY}))], mutations=[updateActor({"ore": 1})])),
            _station("generator", _exchange("ore", "battery")),
            _station("altar", _exchange("battery", "heart")),
        ],
        rewards={
            "ore.gained": settings.ore_reward,
            "battery.gained": settings.battery_reward,
            "heart.gained": settings.heart_reward,
        },
        limits={"ore": CARRY, "battery": CARRY},
        global_tokens=CLOCK_AND_ACTION,
        map_builder=_random_map(settings),
    )


def _navigation(settings: Navigation) -> MettaGridConfig:
    """Each altar holds one visible heart; the first agent to walk into it takes the heart.

    All altars are refilled every `refill` steps. An agent sees a fraction of the room, so it does best if it remembers
    where it has been and which altars it has emptied, and returns when they are full. With the defaults, random moves
    take 1.2 hearts an episode; walking to the nearest full altar in view, else randomly, takes 4; the maximum is 8.
    """
    altar = GridObjectConfig(
        name="altar",
        on_use_handler=Handler(filters=[targetHas({"heart": 1})], mutations=[withdraw({"heart": 1})]),
        inventory=InventoryConfig(initial={"heart": 1}, limits={"heart": _limit("heart", 1)}),
    )
    fill = EventConfig(
        name="fill",
        target_query=typeTag("altar"),
        timesteps=periodic(settings.refill, settings.refill, settings.step_limit),
        mutations=[updateTarget({"heart": 1})],
    )
    return _world(
        settings,
        agents=settings.agents,
        resources=["heart"],
        objects=[altar],
        rewards={"heart.gained": settings.heart_reward},
        global_tokens=CLOCK_AND_ACTION,
        map_builder=_random_map(settings),
        events={"fill": fill},
    )


def _station(name: str, handler: Handler) -> GridObjectConfig:
    return GridObjectConfig(name=name, on_use_handler=handler)


def _exchange(paid: str, gained: str) -> Handler:
    return Handler(filters=[actorHas({paid: 1})], mutations=[updateActor({paid: -1, gained: 1})])


def _random_map(room: Room) -> RandomMapBuilder.Config:
    return RandomMapBuilder.Config(
        agents=room.agents, width=room.size, height=room.size, border_width=1, objects=room.objects()
    )


def _limit(resource: str, amount: int) -> ResourceLimitsConfig:
    return ResourceLimitsConfig(base=amount, resources=[resource])


def _world(
    settings: MettagridWorld,
    *,
    agents: int,
    resources: list[str],
    objects: list[GridObjectConfig],
    rewards: dict[str, float],
    global_tokens: GlobalObsConfig,
    map_builder: MapBuilderConfig,
    limits: dict[str, int] | None = None,
    **game: object,
) -> MettaGridConfig:
    """The configuration of all worlds: walls, four moves, no vibes, and rewards for increases of an agent's stats."""
    tokens = settings.num_tokens or max_tokens_in_view(settings)
    agent_rewards: dict[str, AgentReward] = {name: reward(stat(name), weight=value) for name, value in rewards.items()}
    agent_limits = {name: _limit(name, amount) for name, amount in (limits or {}).items()}
    return MettaGridConfig(
        label=settings.kind,
        game=GameConfig(
            num_agents=agents,
            max_steps=settings.step_limit,
            episode_truncates=True,
            resource_names=[*dict.fromkeys([*resources, *settings.other_resources])],
            obs=ObsConfig(
                width=settings.window, height=settings.window, num_tokens=tokens, global_obs=global_tokens.model_copy()
            ),
            actions=ActionsConfig(change_vibe=ChangeVibeActionConfig(enabled=False, vibes=[])),
            objects={"wall": WallConfig(), **{thing.map_name: thing for thing in objects}},
            agent=AgentConfig(rewards=agent_rewards, inventory=InventoryConfig(default_limit=255, limits=agent_limits)),
            map_builder=map_builder,
            protocol_details_obs=False,
            **game,
        ),
    )


def _room_tokens(room: Room, resources: int, altar_tokens: int) -> int:
    """An upper bound on the tokens in one view of a room: its border, and as many things as fit, the largest first.

    The room is square, so one axis is enough to tell how many cells of the view are within the room.
    """
    position = np.arange(1, room.size - 1)
    first = np.maximum(position - room.window // 2, 0)
    last = np.minimum(position + room.window // 2, room.size - 1)
    visible = last - first + 1
    inside = visible - (first == 0) - (last == room.size - 1)
    inside_cells = np.outer(inside, inside)
    border = int((np.outer(visible, visible) - inside_cells).max())
    others = sum(room.objects().values()) - room.altars
    tokens = [AGENT_TOKENS + resources] * room.agents + [altar_tokens] * room.altars + [1] * others
    clock_and_action = 2
    return clock_and_action + border + sum(tokens[: int(inside_cells.max())])
