"""Rules about the environment: its rewards, its observations, its episodes and its speed."""

from engram.diagnosis import Finding, Setup
from engram.diagnosis.course import Course

MANY_EPISODES = 50  # equal returns of fewer may be chance
SOME_EPISODES = 20
MANY_STEPS = 10_000  # without the end of an episode
LARGE_VALUE = 1000.0  # of an observation that is not normalised
TINY_VALUE = 1e-3
TINY_RETURN = 1e-6
SLOW_FRACTION = 0.8  # of the time that the environment takes


def same_return(course: Course, setup: Setup) -> Finding | None:
    returns = course.returns
    if course.episodes < MANY_EPISODES or not len(returns.steps):
        return None
    value = float(returns.mean[0])
    if course.range > 1e-6 * abs(value) or (setup.goal is not None and value >= setup.goal):
        return None
    if value == 0:
        return Finding(
            "No reward ever seen",
            f"all {course.episodes:,} episodes returned 0",
            "Without a reward nothing tells good actions from bad ones.",
            "an easier version of the task, rewards on the way to the goal, more exploration (trainer.ppo.ent_coef), "
            f"or longer episodes. engram check-env shows the rewards of random actions.{about_masks(course)}",
        )
    return Finding(
        "Advantages all alike",
        f"all {course.episodes:,} episodes returned exactly {value:.6g}",
        "Nothing that the agent does changes its return, so no action is better than another.",
        "a reward that depends on what the agent does. If episodes always reach their step limit, the goal may be out "
        f"of reach: raise the limit, or reward the way to it.{about_masks(course)}",
    )


def tiny_returns(course: Course, _: Setup) -> Finding | None:
    returns = course.returns
    if course.episodes < MANY_EPISODES or not len(returns.steps) or course.range > TINY_RETURN:
        return None
    low, high = returns.low.min(), returns.high.max()
    return Finding(
        "Rewards are tiny",
        f"the mean returns of all epochs lie between {low:.6g} and {high:.6g}",
        "Such differences are lost in rounding, so good actions look like bad ones.",
        "larger rewards: env.reward_scale.",
    )


def about_masks(course: Course) -> str:
    """A remark if some actions are never allowed. It is not a finding, because it may be intended."""
    masked = course.columns["observation/masked_actions"]
    never = int(masked.low.min()) if len(masked.steps) else 0
    if never < 1:
        return ""
    return (
        f" The action mask forbids at least {never} action{'s' * (never > 1)} in every sampled step: if that is not "
        "intended, check the mask."
    )


def no_episode_ended(course: Course, _: Setup) -> Finding | None:
    if course.episodes or course.steps < MANY_STEPS:
        return None
    return Finding(
        "No episode ever ended",
        f"none in {course.steps:,} steps",
        "Returns are unknown, and memory is never reset. Tasks without an end are rare: the environment probably does "
        "not report terminated or truncated.",
        "a step() that returns terminated=True or truncated=True when an episode ends, or env.max_steps=1000.",
    )


def unchanging_observation(course: Course, setup: Setup) -> Finding | None:
    changes = course.columns["observation/changes"]
    if course.episodes < SOME_EPISODES or setup.sees_previous or not len(changes.steps) or changes.high.max() > 0:
        return None
    return Finding(
        "Observations never change",
        f"in {course.episodes:,} episodes, every sampled observation equals the one before it",
        "The agent cannot see what its actions do.",
        "step() must return the new observation: a copy, if it is changed in place later. engram check-env shows "
        "observations; py_agent.previous=[action,reward] helps if there is nothing to see.",
    )


def large_observation(course: Course, _: Setup) -> Finding | None:
    largest = course.mean("observation/largest")
    if largest is None or largest < LARGE_VALUE:
        return None
    return Finding(
        "Observations are huge",
        f"values of {largest:.3g} reach the policy without normalisation",
        "They saturate its first layer, so that different observations look the same.",
        "trainer.norm_obs=true with one of the ready policies; in your own, divide them or use a normaliser.",
    )


def tiny_observation(course: Course, _: Setup) -> Finding | None:
    largest = course.mean("observation/largest")
    if largest is None or not 0 < largest < TINY_VALUE:
        return None
    return Finding(
        "Observations are tiny",
        f"no float of an observation is above {largest:.3g} when it reaches the policy",
        "Beside its biases they hardly count, so that different observations look the same.",
        "trainer.norm_obs=true with one of the ready policies; in your own, multiply them or use a normaliser.",
    )


def slow_environment(course: Course, setup: Setup) -> Finding | None:
    seconds = {
        phase: course.mean(f"time/{phase}_seconds", 0.5, 1.0) or 0.0
        for phase in ("environment", "inference", "learning")
    }
    total = sum(seconds.values())
    if course.epochs < 3 or not total or seconds["environment"] < SLOW_FRACTION * total:
        return None
    speed = course.mean("time/steps_per_second", 0.5, 1.0) or 0.0
    workers = f"{setup.workers} workers" if setup.workers else "no worker processes (trainer.num_workers=0)"
    return Finding(
        "The environment is the bottleneck",
        f"{seconds['environment'] / total:.0%} of the time goes into its steps, at {speed:,.0f} steps/s with {workers}",
        "A faster policy or accelerator would hardly shorten this run.",
        "trainer.num_workers=N on a machine with more cores, or a faster environment.",
    )
