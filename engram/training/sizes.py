"""Sizes of a run that fit the machine and divide each other. Light to import: they are checked before torch is loaded.

A row is one agent of one environment, a segment is `bptt_horizon` steps of a row. An epoch's batch holds the same
number of segments of every row, and splits into minibatches of whole segments.
"""

from collections.abc import Iterable
from math import lcm, log
from typing import NamedTuple

from engram.settings import SettingsError
from engram.training.settings import Trainer

SIZE_NAMES = (
    "trainer.num_envs",
    "trainer.num_workers",
    "trainer.bptt_horizon",
    "trainer.batch_size",
    "trainer.minibatch_size",
    "env.agents",
)

MOST_WORKERS = 32  # unless more are asked for
SHARED = ("num_envs", "batch_size", "minibatch_size")  # sizes that can be given for all processes together


class Sizes(NamedTuple):
    """The sizes of a run, all of them known. Of several processes that train together, each has these."""

    num_envs: int
    rows: int  # num_envs x agents
    horizon: int
    segments: int  # of a batch; a multiple of rows
    batch_size: int
    minibatch_size: int
    num_workers: int
    update_epochs: int


def resolve_sizes(trainer: Trainer, agents: int, device: str, cores: int) -> Sizes:
    """All sizes, those not given chosen for the machine; raises `SettingsError` when the given ones do not divide."""
    if problems := _problems(trainer, agents):
        raise SettingsError(problems)
    rows, batch_size = targets(trainer.bptt_horizon, device, cores)
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


def of_one_rank(trainer: Trainer, processes: int) -> Trainer:
    """The settings of one of the processes that train together: its share of the sizes, where they are of all."""
    if processes == 1 or not trainer.scale_batches_by_world_size:
        return trainer
    given = {name: size for name in SHARED if (size := getattr(trainer, name)) is not None}
    if problems := [
        f"trainer.{name}: {size} cannot be shared by {processes} processes (trainer.scale_batches_by_world_size): "
        f"{_try(size, _multiples(size, processes))}"
        for name, size in given.items()
        if size % processes
    ]:
        raise SettingsError(problems)
    return trainer.model_copy(update={name: size // processes for name, size in given.items()})


def of_all_ranks(sizes: Sizes, processes: int) -> Sizes:
    """What is trained together, for a person to see."""
    alike = ("horizon", "update_epochs")
    return sizes._replace(**{name: n * processes for name, n in sizes._asdict().items() if name not in alike})


def targets(horizon: int, device: str, cores: int) -> tuple[int, int]:
    """Rows and batch size that suit a machine; sizes come as near to them as dividing allows."""
    if device in ("cpu", "auto"):
        rows = 32 * cores
        return rows, rows * max(
            horizon, 64
        )  # short segments: several of each row, so that epochs stay worth their while
    return min(4096, max(1, 524288 // horizon)), 524288


def default_workers(cores: int, num_envs: int, device: str) -> int:
    """A process for every core, or for half of them where the policy too needs cores to act.

    With one or two cores it has none to spare: processes cost what they save, but where environments are slow.
    """
    if device in ("cpu", "auto"):
        return 0 if cores <= 2 else min(cores // 2, num_envs, MOST_WORKERS)
    return 0 if cores == 1 else min(cores, num_envs, MOST_WORKERS)


def default_epochs(batch_size: int) -> int:
    """A large batch makes enough minibatches in one pass; of a small one there is more to learn."""
    return 1 if batch_size >= 65536 else 4


def _environments_and_segments(
    trainer: Trainer, agents: int, rows: int, batch_size: int, cores: int
) -> tuple[int, int]:
    """Environments, and segments of a batch: as given, or as near to the targets as dividing allows."""
    horizon, workers = trainer.bptt_horizon, trainer.num_workers or 1
    minibatch = (trainer.minibatch_size or horizon) // horizon

    def fitting(num_envs: int) -> int:
        """Segments of a batch that every row fills alike and that minibatches split evenly."""
        if trainer.batch_size:
            return trainer.batch_size // horizon
        step = lcm(num_envs * agents, minibatch)
        return step * max(1, round(batch_size / horizon / step))

    def distance(num_envs: int) -> float:
        return abs(log(num_envs * agents / rows)) + abs(log(fitting(num_envs) * horizon / batch_size))

    if trainer.num_envs:
        possible = [trainer.num_envs]
    elif trainer.batch_size:
        possible = _divisors(trainer.batch_size // horizon // agents)
    else:
        # Shares of equal size for as many workers as the machine has cores, not for those asked for: how many processes
        # step the environments must not change what is learned.
        share = min(cores, MOST_WORKERS)
        most = max(2 * rows // agents, workers)
        possible = [*range(share, most + 2 * share, share), lcm(agents * share, minibatch) // agents]
    num_envs = min((number for number in possible if number >= workers), key=distance)
    return num_envs, fitting(num_envs)


def _minibatch(segments: int, horizon: int, device: str) -> int:
    """An eighth of the batch on a CPU, what fills an accelerator on one; the nearest that divides."""
    wanted = segments / 8 if device in ("cpu", "auto") else 16384 / horizon
    return horizon * min(_divisors(segments), key=lambda size: abs(log(size / wanted)))


def _problems(trainer: Trainer, agents: int) -> list[str]:
    """What does not divide among the sizes that are given, each with the nearest sizes that do."""
    unit = (trainer.num_envs or 1) * agents * trainer.bptt_horizon
    fills = trainer.batch_size is not None and trainer.batch_size % unit == 0
    problems = []
    if trainer.batch_size and not fills:
        problems.append(_batch_problem(trainer.batch_size, trainer, agents, unit))
    if trainer.minibatch_size:
        problems += _minibatch_problems(
            trainer.minibatch_size, trainer.bptt_horizon, trainer.batch_size if fills else None
        )
    most = trainer.num_envs or (trainer.batch_size // unit if trainer.batch_size and fills else None)
    if most and (trainer.num_workers or 0) > most:
        source = "trainer.num_envs" if trainer.num_envs else "the most of this trainer.batch_size"
        reason = f"workers cannot share {most} environment{'s' * (most > 1)} ({source})"
        problems.append(f"trainer.num_workers: {trainer.num_workers} {reason}: try {most}")
    return problems


def _batch_problem(batch: int, trainer: Trainer, agents: int, unit: int) -> str:
    minibatch = trainer.minibatch_size or 1
    step = unit if minibatch % trainer.bptt_horizon else lcm(unit, minibatch)
    least = unit if trainer.num_envs else unit * (trainer.num_workers or 1)  # every worker needs an environment
    factors = [f"trainer.num_envs {trainer.num_envs}"] if trainer.num_envs else []
    factors += [f"{agents} agents"] if agents > 1 else []
    reason = " x ".join([*factors, f"trainer.bptt_horizon {trainer.bptt_horizon}"])
    hint = _try(batch, _multiples(batch, step, least))
    return f"trainer.batch_size: {batch} is not a multiple of {unit} ({reason}): {hint}"


def _minibatch_problems(minibatch: int, horizon: int, batch: int | None) -> list[str]:
    """At most one; `batch` is None where it is not given or wrong itself."""
    splits = [size * horizon for size in _divisors(batch // horizon)] if batch else _multiples(minibatch, horizon)
    if minibatch in splits:
        return []
    reason = f"does not divide trainer.batch_size ({batch})"
    if minibatch % horizon:
        reason = f"is not a multiple of trainer.bptt_horizon ({horizon})"
    return [f"trainer.minibatch_size: {minibatch} {reason}: {_try(minibatch, splits)}"]


def _try(given: int, fitting: Iterable[int]) -> str:
    """`try 960 or 1024`: the nearest fitting sizes below and above."""
    below = [size for size in fitting if size < given]
    above = [size for size in fitting if size > given]
    return "try " + " or ".join(str(size) for size in [*below[-1:], *above[:1]])


def _multiples(given: int, step: int, least: int = 1) -> list[int]:
    """The multiples of `step` around `given`, or the first that is large enough."""
    below, enough = given // step * step, -(-least // step) * step
    return [size for size in (below, max(below + step, enough)) if size >= enough]


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
