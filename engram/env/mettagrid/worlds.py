"""The ready mettagrid worlds: settings in, a MettaGridConfig out."""

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
AGENT_TOKENS = 3  # each agent in view: its type, its group, its id; and one more per resource it holds
NO_CLOCK = GlobalObsConfig(episode_completion_pct=False, last_action=False, last_reward=False)
CLOCK_AND_ACTION = GlobalObsConfig(last_reward=False)  # mettagrid's last reward is 0 in every observation


def world(settings: MettagridWorld) -> MettaGridConfig:
    """The configuration of a ready world, made anew at every call: mettagrid changes a configuration that it uses."""
    if isinstance(settings, TMaze):
        return _tmaze(settings)
    if isinstance(settings, Workshop):
        return _workshop(settings)
    if isinstance(settings, Navigation):
        return _navigation(settings)
    raise TypeError(f"no world is made from {type(settings).__name__}")


def tokens_in_view(settings: MettagridWorld) -> int:
    """A bound on the tokens of one observation: what there would be if all that can come into view did so at once."""
    if isinstance(settings, TMaze):
        return AGENT_TOKENS + 2 * settings.window
    if isinstance(settings, Workshop):
        return _room_tokens(settings, resources=3, altar_tokens=1)
    if isinstance(settings, Navigation):
        return _room_tokens(settings, resources=1, altar_tokens=2)
    raise TypeError(f"no world is made from {type(settings).__name__}")


def _tmaze(settings: TMaze) -> MettaGridConfig:
    """An agent walks from the cue to a junction with a goal on either side; the cue tells which of them pays.

    Nothing but memory can carry the cue to the junction. The corridor is one cell wide, so the agent's place says
    nothing of the cue, and cue and goals are never in view together. No token tells the time or the last action: a
    policy without memory could wait, or bump into a wall, as a note to itself. The goals share one type, hence one tag.
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
    """Walking into a mine gives ore; into a generator turns ore to a battery; into an altar, a battery to a heart."""
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
        map_builder=_scatter(settings),
    )


def _navigation(settings: Navigation) -> MettaGridConfig:
    """An altar holds one heart, which shows while it is there; the first agent to walk into the altar takes it.

    All altars are filled again at every `refill`-th step. An agent sees a fraction of the room: it does best if it
    remembers where it has been and where altars are that it has emptied, and comes back when they are full. By
    default random moves take 1.2 hearts an episode; going for the nearest full altar in sight, else at random, 4;
    and 8 is all there are.
    """
    altar = GridObjectConfig(
        name="altar",
        on_use_handler=Handler(filters=[targetHas({"heart": 1})], mutations=[withdraw({"heart": 1})]),
        inventory=InventoryConfig(initial={"heart": 1}, limits={"heart": _limit("heart", 1)}),
    )
    fill = EventConfig(
        name="fill",
        target_query=typeTag("altar"),
        timesteps=periodic(settings.refill, settings.refill, settings.max_steps),
        mutations=[updateTarget({"heart": 1})],
    )
    return _world(
        settings,
        agents=settings.agents,
        resources=["heart"],
        objects=[altar],
        rewards={"heart.gained": settings.heart_reward},
        global_tokens=CLOCK_AND_ACTION,
        map_builder=_scatter(settings),
        events={"fill": fill},
    )


def _station(name: str, handler: Handler) -> GridObjectConfig:
    return GridObjectConfig(name=name, on_use_handler=handler)


def _exchange(paid: str, gained: str) -> Handler:
    return Handler(filters=[actorHas({paid: 1})], mutations=[updateActor({paid: -1, gained: 1})])


def _scatter(room: Room) -> RandomMapBuilder.Config:
    return RandomMapBuilder.Config(
        agents=room.agents, width=room.size, height=room.size, border_width=1, objects=room.things()
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
    """What all worlds have in common: walls, four moves and no vibes, and rewards by what an agent's stats gain."""
    tokens = settings.num_tokens or tokens_in_view(settings)
    agent_rewards: dict[str, AgentReward] = {name: reward(stat(name), weight=value) for name, value in rewards.items()}
    agent_limits = {name: _limit(name, amount) for name, amount in (limits or {}).items()}
    return MettaGridConfig(
        label=settings.kind,
        game=GameConfig(
            num_agents=agents,
            max_steps=settings.max_steps,
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
    place = np.arange(1, room.size - 1)
    first = np.maximum(place - room.window // 2, 0)
    last = np.minimum(place + room.window // 2, room.size - 1)
    seen = last - first + 1
    inside = seen - (first == 0) - (last == room.size - 1)
    inside_cells = np.outer(inside, inside)
    border = int((np.outer(seen, seen) - inside_cells).max())
    others = sum(room.things().values()) - room.altars
    tokens = [AGENT_TOKENS + resources] * room.agents + [altar_tokens] * room.altars + [1] * others
    clock_and_action = 2
    return clock_and_action + border + sum(tokens[: int(inside_cells.max())])
