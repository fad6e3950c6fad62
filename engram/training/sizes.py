"""Sizes of a run, chosen to fit the machine and to divide each other, and kept on resume. Does not import torch.

A row is one agent of one environment, a segment is `bptt_horizon` steps of a row. An epoch's batch holds the same
number of segments of every row, and splits into minibatches of whole segments.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from engram.settings import SettingsError, UserError
from engram.training.settings import Trainer

if TYPE_CHECKING:
    from engram.training.checkpoint.files import Checkpoint

SIZE_NAMES = (
    "trainer.num_envs",
    "trainer.num_workers",
    "trainer.bptt_horizon",
    "trainer.batch_size",
    "trainer.minibatch_size",
    "env.agents",
)

AUTOMATIC = ("num_envs", "batch_size", "minibatch_size", "update_epochs")  # chosen for the machine if not set
KEPT = (*AUTOMATIC, "rows", "horizon", "segments")  # must not change on resume
SHORT_RUN = 150_000  # agent-steps: shorter runs need small batches
MAX_WORKERS = 32  # unless the settings ask for more
SCALED = ("num_envs", "batch_size", "minibatch_size")  # divided by the ranks with scale_batches_by_world_size

log = logging.getLogger("engram")


class Sizes(NamedTuple):
    """All sizes of a run, per rank."""

    num_envs: int
    rows: int  # num_envs x agents
    horizon: int
    segments: int  # of a batch; a multiple of rows
    batch_size: int
    minibatch_size: int
    num_workers: int
    update_epochs: int


def resolve_sizes(trainer: Trainer, agents: int, device: str, cores: int) -> Sizes:
    """Choose the sizes that are not given to fit the machine. Raises `SettingsError` if given ones do not divide."""
    if problems := _problems(trainer, agents):
        raise SettingsError(problems)
    rows, batch_size = targets(trainer, device, cores)
    num_envs, segments = _environments_and_segments(trainer, agents, rows, batch_size, cores)
    return Sizes(
        num_envs=num_envs,
        rows=num_envs * agents,
        horizon=trainer.bptt_horizon,
        segments=segments,
        batch_size=segments * trainer.bptt_horizon,
        minibatch_size=trainer.minibatch_size or _minibatch(segments, trainer.bptt_horizon, device),
        num_workers=default_workers(cores, num_envs, device) if trainer.num_workers is None else trainer.num_workers,
        update_epochs=trainer.update_epochs or default_epochs(segments * trainer.bptt_horizon),
    )


def sizes_of_run(
    trainer: Trainer, checkpoint: "Checkpoint | None", agents: int, device: str, cores: int, ranks: int = 1
) -> Sizes:
    """The sizes a run started with, even on another machine; for a new run, sizes that suit this machine.

    If the number of ranks changed, the sizes may change too.
    """
    trainer = of_one_rank(trainer, ranks)
    defaults = resolve_sizes(trainer, agents, device, cores)
    if checkpoint is None or len(checkpoint.state["ranks"]) != ranks:
        return defaults
    stored: Mapping[str, int] = checkpoint.state["sizes"]
    if missing := [name for name in KEPT if name not in stored]:
        raise UserError(
            f"{checkpoint.path} lacks the sizes {', '.join(missing)}: remove it to resume from the previous one, or "
            "start a new run"
        )
    given = {name: stored[name] for name in AUTOMATIC if getattr(trainer, name) is None}
    sizes = resolve_sizes(trainer.model_copy(update=given), agents, device, cores)
    if changed := _differences(sizes, stored, KEPT):
        raise UserError(f"{checkpoint.path} is of a run with different sizes ({', '.join(changed)}): start a new run")
    if changed := _differences(defaults, stored, AUTOMATIC):
        log.info("keeping the sizes the run started with, which differ from the defaults here: %s", ", ".join(changed))
    return sizes


def of_one_rank(trainer: Trainer, ranks: int) -> Trainer:
    """The settings of one rank: its part of the sizes, if they are given for all ranks together."""
    if ranks == 1 or not trainer.scale_batches_by_world_size:
        return trainer
    given = {name: size for name in SCALED if (size := getattr(trainer, name)) is not None}
    if problems := [
        f"trainer.{name}: {size} cannot be divided among {ranks} ranks (trainer.scale_batches_by_world_size): "
        f"{_suggest(size, _multiples(size, ranks))}"
        for name, size in given.items()
        if size % ranks
    ]:
        raise SettingsError(problems)
    return trainer.model_copy(update={name: size // ranks for name, size in given.items()})


def of_all_ranks(sizes: Sizes, ranks: int) -> Sizes:
    """The sizes of all ranks together, for display."""
    unscaled = ("horizon", "update_epochs")
    return sizes._replace(**{name: n * ranks for name, n in sizes._asdict().items() if name not in unscaled})


def targets(trainer: Trainer, device: str, cores: int) -> tuple[int, int]:
    """Rows and batch size for this budget and machine. The sizes of a run come as near as divisibility allows."""
    horizon, steps, accelerator = trainer.bptt_horizon, trainer.total_timesteps, device not in ("cpu", "auto")
    if accelerator:
        batch_size = 524288
    elif steps <= SHORT_RUN:
        batch_size = 2048
    else:
        batch_size = 4096 if steps <= 1_000_000 else 4096 * max(2, cores)
    while batch_size > 512 and steps < 8 * batch_size:  # a very short run still makes several updates
        batch_size //= 2
    batch_size = max(min(batch_size, steps), horizon)
    steps_per_row = horizon if accelerator else max(horizon, 64)
    rows = min(4096, max(1, batch_size // steps_per_row))
    return rows, batch_size


def steps_played(total_timesteps: int, batch_size: int) -> int:
    """The steps of a run: the last batch is played to its end."""
    return -(-total_timesteps // batch_size) * batch_size


def default_workers(cores: int, num_envs: int, device: str) -> int:
    """One worker per core, or per two cores if the policy acts on the CPU too.

    On one or two cores, workers cost as much as they save unless environments are slow.
    """
    if device in ("cpu", "auto"):
        return 0 if cores <= 2 else min(cores // 2, num_envs, MAX_WORKERS)
    return 0 if cores == 1 else min(cores, num_envs, MAX_WORKERS)


def default_epochs(batch_size: int) -> int:
    """Passes over a batch: only one if it is large, since it then has many minibatches."""
    return 1 if batch_size >= 65536 else 4


def _differences(sizes: Sizes, stored: Mapping[str, int], names: tuple[str, ...]) -> list[str]:
    now = sizes._asdict()
    return [f"{name} {stored[name]}, not {now[name]}" for name in names if stored[name] != now[name]]


def _environments_and_segments(
    trainer: Trainer, agents: int, rows: int, batch_size: int, cores: int
) -> tuple[int, int]:
    """Environments, and segments per batch: as given, or as close to the targets as divisibility allows."""
    horizon, workers = trainer.bptt_horizon, trainer.num_workers or 1
    minibatch = (trainer.minibatch_size or horizon) // horizon
    very_short = trainer.total_timesteps < max(8 * 512, 2 * min(cores, MAX_WORKERS) * agents * horizon)

    def segments_for(num_envs: int) -> int:
        """Segments per batch: a multiple of the rows and of the segments per minibatch."""
        if trainer.batch_size:
            return trainer.batch_size // horizon
        unit = math.lcm(num_envs * agents, minibatch)
        return unit * max(1, round(batch_size / horizon / unit))

    def distance(num_envs: int) -> float:
        size = segments_for(num_envs) * horizon
        excess = steps_played(trainer.total_timesteps, size) / trainer.total_timesteps - 1
        return (
            abs(math.log(num_envs * agents / rows))
            + abs(math.log(size / batch_size))
            + (10 * excess if very_short else 0)
        )

    if trainer.num_envs:
        possible = [trainer.num_envs]
    elif trainer.batch_size:
        possible = _divisors(trainer.batch_size // horizon // agents)
    else:
        # Multiples of the cores, not of the given workers: the number of workers must not change what is learned.
        unit = 1 if very_short else min(cores, MAX_WORKERS)
        maximum = max(2 * rows // agents, workers)
        one_minibatch = math.lcm(agents * unit, minibatch) // agents  # one segment per row fills whole minibatches
        possible = [*range(unit, maximum + 2 * unit, unit), one_minibatch]
    num_envs = min((number for number in possible if number >= workers), key=distance)
    return num_envs, segments_for(num_envs)


def _minibatch(segments: int, horizon: int, device: str) -> int:
    """The divisor closest to an eighth of the batch on CPUs, and to 16384 steps on accelerators."""
    wanted = segments / 8 if device in ("cpu", "auto") else 16384 / horizon
    return horizon * min(_divisors(segments), key=lambda size: abs(math.log(size / wanted)))


def _problems(trainer: Trainer, agents: int) -> list[str]:
    """Errors for given sizes that do not divide, each with the nearest sizes that do."""
    unit = (trainer.num_envs or 1) * agents * trainer.bptt_horizon
    is_multiple = trainer.batch_size is not None and trainer.batch_size % unit == 0
    problems = []
    if trainer.batch_size and not is_multiple:
        problems.append(_batch_problem(trainer.batch_size, trainer, agents, unit))
    if trainer.minibatch_size:
        problems += _minibatch_problems(
            trainer.minibatch_size, trainer.bptt_horizon, trainer.batch_size if is_multiple else None
        )
    maximum = trainer.num_envs or (trainer.batch_size // unit if trainer.batch_size and is_multiple else None)
    if maximum and (trainer.num_workers or 0) > maximum:
        source = "trainer.num_envs" if trainer.num_envs else "the maximum for this trainer.batch_size"
        reason = f"workers cannot share {maximum} environment{'s' * (maximum > 1)} ({source})"
        problems.append(f"trainer.num_workers: {trainer.num_workers} {reason}: try {maximum}")
    return problems


def _batch_problem(batch: int, trainer: Trainer, agents: int, unit: int) -> str:
    minibatch = trainer.minibatch_size or 1
    step = unit if minibatch % trainer.bptt_horizon else math.lcm(unit, minibatch)
    minimum = unit if trainer.num_envs else unit * (trainer.num_workers or 1)  # every worker needs an environment
    factors = [f"trainer.num_envs {trainer.num_envs}"] if trainer.num_envs else []
    factors += [f"{agents} agents"] if agents > 1 else []
    reason = " x ".join([*factors, f"trainer.bptt_horizon {trainer.bptt_horizon}"])
    hint = _suggest(batch, _multiples(batch, step, minimum))
    return f"trainer.batch_size: {batch} is not a multiple of {unit} ({reason}): {hint}"


def _minibatch_problems(minibatch: int, horizon: int, batch: int | None) -> list[str]:
    """At most one error; `batch` is None if it is not given or invalid itself."""
    splits = [size * horizon for size in _divisors(batch // horizon)] if batch else _multiples(minibatch, horizon)
    if minibatch in splits:
        return []
    reason = f"does not divide trainer.batch_size ({batch})"
    if minibatch % horizon:
        reason = f"is not a multiple of trainer.bptt_horizon ({horizon})"
    return [f"trainer.minibatch_size: {minibatch} {reason}: {_suggest(minibatch, splits)}"]


def _suggest(given: int, valid: Iterable[int]) -> str:
    """`try 960 or 1024`: the nearest valid sizes below and above."""
    below = [size for size in valid if size < given]
    above = [size for size in valid if size > given]
    return "try " + " or ".join(str(size) for size in [*below[-1:], *above[:1]])


def _multiples(given: int, step: int, minimum: int = 1) -> list[int]:
    """The multiples of `step` below and above `given`, or the smallest one that reaches `minimum`."""
    below, smallest = given // step * step, -(-minimum // step) * step
    return [size for size in (below, max(below + step, smallest)) if size >= smallest]


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
