"""The diagnosis of a run: a pure function of its metrics and settings, at its end or while it trains."""

from collections.abc import Mapping
from typing import Any

from engram.diagnosis import Diagnosis, Finding, Setup, environment, rules
from engram.diagnosis.course import FIRST, LAST, MIN_EPOCHS, Course
from engram.diagnosis.rules import Rule
from engram.stored.metrics import Columns

# Faults of the environment. They are reported even if the agent learns.
BROKEN: tuple[Rule, ...] = (environment.no_episode_ended, environment.unchanging_observation)
# Only the first cause is reported, since it explains the others and all symptoms.
CAUSES: tuple[Rule, ...] = (
    environment.same_return,
    environment.tiny_returns,
    environment.large_observation,
    environment.tiny_observation,
    rules.rate_ends_early,
    rules.small_target_kl,
    rules.still_policy,
    rules.exploding_kl,
    rules.clipped_updates,
    rules.large_entropy_bonus,
    rules.short_sighted,
)
MEMORY: tuple[Rule, ...] = (rules.short_horizon, rules.memory_unused)
SYMPTOMS: tuple[Rule, ...] = (rules.lost, rules.fell, rules.collapsed_entropy, rules.unexplained_returns)

CHECK_INTERVAL = 0.05  # fraction of a run between two checks while it trains
# The fraction of a run after which a fault is reported. Other faults may still resolve and are reported at the end.
REPORTED_AFTER: dict[Rule, float] = {
    environment.no_episode_ended: 0.25,
    environment.unchanging_observation: 0.1,
    environment.same_return: 0.25,
    environment.tiny_returns: 0.25,
    environment.large_observation: 0.25,
    rules.rate_ends_early: 0.25,
    rules.still_policy: 0.25,
    rules.exploding_kl: 0.1,
    rules.clipped_updates: 0.25,
    rules.large_entropy_bonus: 0.5,
    rules.short_sighted: 0.5,
    rules.lost: 0.5,
    rules.collapsed_entropy: 0.5,
    environment.slow_environment: 0.1,
}
SHORTER_LENGTH = 0.8  # of the episodes' length at the beginning: shorter ones suggest that ending early pays
NEAR_ZERO = 0.05  # of the negative return at the beginning
ADVICE = (
    "train for longer, let engram check-env play the environment, and look at engram replay; then try a larger "
    "trainer.ppo.ent_coef, other seeds, and an easier version of the task"
)


def diagnose(columns: Columns, setup: Setup) -> Diagnosis:
    """The diagnosis of a run, from its metrics and setup."""
    course = Course(columns)
    speed = _first((environment.slow_environment,), course, setup)
    if stopped := rules.not_finite(course, setup):
        return Diagnosis("faults", stopped.line, [stopped, *speed])
    broken = _first(BROKEN, course, setup)
    if not course.long_enough and not broken:
        return Diagnosis("faults" if speed else "early", _too_early(course), speed)
    found = (broken or learning_faults(course, setup)) + speed
    if not found and setup.memory == "off" and rules.at_ceiling(course, setup):
        return Diagnosis("healthy", f"Return {course.last:.3g}: trainer.memory is off, and higher returns need it.", [])
    if found:
        return Diagnosis("faults", found[0].line, found)
    return _without_findings(course, setup)


def learning_faults(course: Course, setup: Setup) -> list[Finding]:
    """The first cause, with the symptom of a lost policy; without a cause, all symptoms."""
    learned = has_learned(course, setup)
    causes = ([] if learned else _first(CAUSES, course, setup)) or _first(MEMORY, course, setup)
    if learned or (setup.memory == "off" and rules.at_ceiling(course, setup)):
        return causes  # the return is as good as can be expected, so there are no symptoms
    symptoms = (rules.lost,) if causes else SYMPTOMS
    return causes + [finding for rule in symptoms if (finding := rule(course, setup))]


def has_learned(course: Course, setup: Setup) -> bool:
    return (is_solved(course, setup) or (course.improved and not rules.destroyed(course))) and not course.lost


def is_solved(course: Course, setup: Setup) -> bool:
    """Whether the return lacks at most a tenth of the way from the ceiling without memory (or 0) to the goal."""
    return setup.goal is not None and course.last >= setup.goal - 0.1 * abs(setup.goal - (setup.ceiling or 0.0))


def _first(among: tuple[Rule, ...], course: Course, setup: Setup) -> list[Finding]:
    return next(([finding] for rule in among if (finding := rule(course, setup))), [])


def _too_early(course: Course) -> str:
    if course.epochs >= MIN_EPOCHS and not course.episodes:
        return f"No episode has ended in {course.steps:,} steps, so there is no return to judge by."
    epochs = f"{course.epochs} epoch{'s' if course.epochs != 1 else ''}"
    episodes = f"{course.episodes} episode{'s' if course.episodes != 1 else ''}"
    return f"Too early to tell: {epochs} with {episodes}."


def _without_findings(course: Course, setup: Setup) -> Diagnosis:
    levels = f"from {course.start:.4g} at its beginning to {course.last:.4g} at its end"
    if course.improved:
        return Diagnosis("healthy", f"Nothing found: the return rises {levels}.{_about_sign(course)}", [])
    if is_solved(course, setup):
        return Diagnosis("healthy", f"Nothing found: the return is {course.last:.4g}, near the best possible.", [])
    unknown = f"Unknown: the return goes {levels}, and nothing was found that explains it."
    remarks = environment.about_masks(course) + _about_memory(course, setup)
    return Diagnosis("unknown", f"{unknown}{remarks} Next: {ADVICE}.", [])


def _about_sign(course: Course) -> str:
    """A remark if the reward may have the wrong sign, which agents learn equally well, so that no rule finds it."""
    first, last = course.mean("episode/length", 0.0, FIRST), course.mean("episode/length", 1 - LAST, 1.0)
    if first is not None and last is not None and last <= SHORTER_LENGTH * first and course.start < 0:
        return (
            f" Episodes became shorter, from {first:.0f} to {last:.0f} steps, and returns are negative: if ending "
            "early is not the task, check the sign of the reward."
        )
    if course.start < 0 and course.returns.high.max() <= 0 and course.last >= NEAR_ZERO * course.start:
        return " Returns are never above 0 and end near 0: if success should be rewarded, check the sign of the reward."
    return ""


def _about_memory(course: Course, setup: Setup) -> str:
    length = course.mean("episode/length", 0.5, 1.0) or 0.0
    if rules.below_ceiling(course, setup):
        return f" {setup.ceiling:.3g} is possible without memory: train for more steps first."
    if setup.memory == "off":
        return " Memory is off (trainer.memory), so nothing that needs memory is learned."
    if length <= setup.bptt_horizon:
        return ""
    return (
        f" Episodes have {length:.0f} steps, and gradients reach back {setup.bptt_horizon} (trainer.bptt_horizon): "
        "remembering anything for longer is hardly learned."
    )


class LiveDiagnosis:
    """Diagnoses a run while it trains, and reports each fault once, when it has become clear."""

    def __init__(self, setup: Setup, earlier: Columns | None = None) -> None:
        """`earlier`: the metrics of the run before it was resumed."""
        self._setup = setup
        self._columns = Columns() if earlier is None else earlier
        self._next_check = CHECK_INTERVAL * setup.total_timesteps  # in steps
        self._reported: set[str] = set()  # names of findings
        self._cause_reported = False  # it explains the other faults, which are not reported

    def add(self, record: Mapping[str, Any]) -> list[Finding]:
        """Add the metrics of an epoch; returns the faults that have become clear."""
        self._columns.add(record)
        steps = record.get("steps", 0)
        if steps < self._next_check:
            return []
        self._next_check = steps + CHECK_INTERVAL * self._setup.total_timesteps
        found = self._check(steps / self._setup.total_timesteps)
        self._reported |= {finding.name for finding in found}
        return found

    def result(self) -> Diagnosis:
        """The diagnosis of the run so far."""
        return diagnose(self._columns, self._setup)

    def _check(self, progress: float) -> list[Finding]:
        course = Course(self._columns)
        learned = has_learned(course, self._setup)
        found: list[Finding] = []
        for rule, reported_after in REPORTED_AFTER.items():
            about_learning = rule not in (*BROKEN, environment.slow_environment)
            if progress < reported_after or (not course.long_enough and rule not in BROKEN):
                continue
            if about_learning and (learned or self._cause_reported):
                continue
            finding = rule(course, self._setup)
            if finding and finding.name not in self._reported:
                self._cause_reported |= rule in (*BROKEN, *CAUSES)
                found.append(finding)
        return found
