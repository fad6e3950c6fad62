"""One rule for each fault of learning that metrics show. A rule returns what it found, or None.

Rules about learning apply only if the return has not improved, or was lost again: entropy, clipping, explained
variance and advantages are near 0 in runs that have solved their task.
"""

from collections.abc import Callable

import numpy as np

from engram.diagnosis import Finding, Setup
from engram.diagnosis.course import Course

Rule = Callable[[Course, Setup], Finding | None]

MEMORY_UNUSED = "Memory is not used"
STILL = 1e-6  # KL divergence of a policy that does not move
SMALL_RATE = 1e-6
FAST_RATE = 3e-3  # three times the default
SMALL_TARGET_KL = 1e-3
LARGE_KL, LARGE_KL_AT_FAST_RATE = 1.0, 0.2  # in one epoch; 0.01 to 0.05 are usual
DESTROYING_KL = 10.0  # in one epoch: actions that were likely have become impossible
MOST_CLIPPED = 0.5
NARROW_CLIP = 0.01
COLLAPSED = 0.05  # of the entropy of uniform actions
UNIFORM = 0.99  # of the entropy of uniform actions: the agent acts at random
LARGE_ENT_COEF = 0.05
EXPLAINED = 0.05
LOW_GAMMA = 0.9
SHORT_SIGHT = 3  # an episode is at least this many times as long as the discounted horizon
CEILING_BAND = 0.2  # returns this near to the ceiling may equal it by chance, as a fraction of its distance to the goal


def not_finite(course: Course, _: Setup) -> Finding | None:
    bad = course.columns.not_finite
    if not bad:
        return None
    epoch = min(bad.values())
    names = [name for name, first in bad.items() if first == epoch]
    evidence = f"in epoch {epoch} {', '.join(names[:4])} {'was' if len(names) == 1 else 'were'} NaN or infinite"
    if any(name in ("return", "episode/return") for name in names):
        return Finding(
            "Not a number",
            evidence,
            "The environment gave a reward that is not a number.",
            "engram check-env with env.check=strict finds the step that gives it.",
        )
    return Finding(
        "Not a number",
        evidence,
        "A loss or gradient overflowed.",
        "a lower trainer.optimizer.learning_rate, or smaller rewards (env.reward_scale). log.txt names the first bad "
        "tensor; the last checkpoint is good.",
    )


def still_policy(course: Course, setup: Setup) -> Finding | None:
    kl, clipped = course.columns["loss/kl"], course.columns["loss/clip_fraction"]
    if not len(kl.steps) or np.abs(kl.mean).mean() > STILL or (len(clipped.steps) and clipped.high.max() > 1e-3):
        return None
    rate = course.mean("schedule/optimizer.learning_rate")
    rate = setup.learning_rate if rate is None else rate
    moves = f"the KL divergence of an epoch is {np.abs(kl.mean).mean():.1e} on average, and no ratio is clipped"
    if rate < SMALL_RATE:
        return Finding(
            "Learning rate near 0",
            f"trainer.optimizer.learning_rate was {rate:.1e} on average; {moves}",
            "The weights hardly change, so the policy stays as it began.",
            "the default, trainer.optimizer.learning_rate=0.001, and a look at trainer.schedule.",
        )
    return Finding(
        "The policy does not move",
        moves,
        "Updates are too small to change what the agent does, or have no gradient.",
        "a larger trainer.optimizer.learning_rate or trainer.optimizer.max_grad_norm "
        f"(now {setup.learning_rate:g} and {setup.max_grad_norm:g}). engram audit finds weights without a gradient.",
    )


def small_target_kl(course: Course, setup: Setup) -> Finding | None:
    kl = course.mean("loss/kl")
    if setup.target_kl is None or setup.target_kl >= SMALL_TARGET_KL or kl is None or abs(kl) >= SMALL_TARGET_KL:
        return None
    return Finding(
        "target_kl ends the updates too early",
        f"trainer.ppo.target_kl is {setup.target_kl:g}, and the KL divergence of an epoch is {abs(kl):.1e} on average "
        "(0.01 to 0.05 are usual)",
        "The updates of an epoch stop as soon as the policy has moved at all, so it hardly moves.",
        "trainer.ppo.target_kl=0.03, or null.",
    )


def rate_ends_early(course: Course, setup: Setup) -> Finding | None:
    rate = course.columns["schedule/optimizer.learning_rate"]
    if not len(rate.steps):
        return None
    share = float(np.average(rate.mean <= 1e-4 * setup.learning_rate, weights=rate.epochs))
    if share < 0.5:
        return None
    return Finding(
        "Learning rate near 0",
        f"in {share:.0%} of the epochs the learning rate was below a ten-thousandth of {setup.learning_rate:g}",
        "The schedule ends learning long before the run ends.",
        "trainer.schedule.optimizer.learning_rate with until=1, or a constant one.",
    )


def exploding_kl(course: Course, setup: Setup) -> Finding | None:
    kl, rates = course.columns["loss/kl"], course.columns["schedule/optimizer.learning_rate"]
    rate = max(setup.learning_rate, float(rates.high.max()) if len(rates.steps) else 0.0)
    if not len(kl.steps) or kl.high.max() < (LARGE_KL_AT_FAST_RATE if rate >= FAST_RATE else LARGE_KL):
        return None
    largest, at = float(kl.high.max()), int(kl.steps[int(kl.high.argmax())])
    evidence = f"the KL divergence of an epoch reached {largest:.3g} (0.01 to 0.05 are usual) at {at:,} steps"
    if rate >= FAST_RATE:
        at_most, advice = "", "trainer.optimizer.learning_rate=0.001 or less."
        if rate > setup.learning_rate:
            at_most, advice = " at most", "a trainer.schedule.optimizer.learning_rate that does not rise."
        return Finding(
            "Learning rate too high",
            f"{evidence}; trainer.optimizer.learning_rate is {rate:g}{at_most}",
            "Single updates change the policy completely, and destroy what it had learned.",
            advice,
        )
    return Finding(
        "KL divergence explodes",
        evidence,
        "Updates carry the policy far from the one that collected the data, where the data says nothing.",
        "trainer.ppo.target_kl=0.03, a lower learning rate, fewer trainer.update_epochs or larger minibatches.",
    )


def clipped_updates(course: Course, setup: Setup) -> Finding | None:
    share = course.mean("loss/clip_fraction", 0.1, 1.0)
    if share is None or share < MOST_CLIPPED:
        return None
    meaning = "The policy leaves the clip range in its first updates, and the rest of each epoch is lost."
    advice = "a lower trainer.optimizer.learning_rate or fewer trainer.update_epochs."
    if setup.clip_coef < NARROW_CLIP:
        meaning = "The clip range is so narrow that hardly any step has a gradient."
        advice = "trainer.ppo.clip_coef=0.2."
    return Finding(
        "Every update is clipped",
        f"{share:.0%} of the probability ratios are clipped; trainer.ppo.clip_coef is {setup.clip_coef:g}",
        meaning,
        advice,
    )


def large_entropy_bonus(course: Course, setup: Setup) -> Finding | None:
    entropy = course.mean("loss/entropy", 0.5, 1.0)
    coefficient = course.mean("schedule/ppo.ent_coef")
    coefficient = (setup.ent_coef or 0.0) if coefficient is None else coefficient
    if not acts_at_random(course, setup) or coefficient < LARGE_ENT_COEF or entropy is None:
        return None
    return Finding(
        "The entropy bonus outweighs the reward",
        f"the entropy is {entropy:.4g}, that of uniformly drawn actions; trainer.ppo.ent_coef is {coefficient:g}",
        "The agent is paid more for acting at random than for its task.",
        "trainer.ppo.ent_coef=0.01.",
    )


def short_sighted(course: Course, setup: Setup) -> Finding | None:
    length = course.mean("episode/length", 0.5, 1.0) or 0.0
    if setup.gamma >= LOW_GAMMA or setup.immediate_rewards or length < SHORT_SIGHT / (1 - setup.gamma):
        return None
    horizon = 1 / (1 - setup.gamma)
    return Finding(
        "The discount hides later rewards",
        f"trainer.ppo.gamma is {setup.gamma:g}, so rewards count for about {horizon:.2g} step{'s' * (horizon > 1)}; "
        f"episodes have {length:.0f}",
        "The agent learns nothing from the later consequences of its actions.",
        "trainer.ppo.gamma=0.99.",
    )


def short_horizon(course: Course, setup: Setup) -> Finding | None:
    if setup.delay is None or setup.delay < setup.bptt_horizon or not at_ceiling(course, setup):
        return None
    return Finding(
        "bptt_horizon is shorter than the delay",
        f"the cue is {setup.delay} steps before the action that needs it, and gradients reach back "
        f"{setup.bptt_horizon} steps (trainer.bptt_horizon); the return is {_against_ceiling(course, setup)}",
        "No gradient connects the cue with the reward, so nothing teaches the agent to remember it.",
        f"trainer.bptt_horizon={_power_of_two(2 * setup.delay)}.",
    )


def memory_unused(course: Course, setup: Setup) -> Finding | None:
    if setup.memory == "off" or not at_ceiling(course, setup) or below_ceiling(course, setup):
        return None
    if _rises(course) or acts_at_random(course, setup):
        return None
    return Finding(
        MEMORY_UNUSED,
        f"the return is {_against_ceiling(course, setup)}",
        "The agent does what can be done without memory. It has not learned to remember.",
        "more trainer.total_timesteps first; then a longer trainer.bptt_horizon, or an easier task to begin with (a "
        "shorter delay) and init_from=. engram memory shows what it remembers.",
    )


def lost(course: Course, _: Setup) -> Finding | None:
    if not course.lost:
        return None
    return Finding(
        "Learned, then lost",
        f"the return rose from {course.start:.4g} to {course.best:.4g} (at {course.best_step:,} steps) and fell to "
        f"{course.last:.4g}",
        "Later updates destroyed a policy that worked.",
        "checkpoint=best is the good policy. Then a lower trainer.optimizer.learning_rate, trainer.ppo.target_kl=0.03, "
        "or larger batches.",
    )


def fell(course: Course, _: Setup) -> Finding | None:
    if course.lost or not course.fell:
        return None
    return Finding(
        "The return fell",
        f"it was {course.start:.4g} at the beginning and is {course.last:.4g} at the end, and was never much higher",
        "Training made the policy worse than it was in its first epochs: it optimises something else than the reward, "
        "or its updates are too large.",
        "checkpoint=best, if it is early enough; a lower trainer.optimizer.learning_rate, and a look at the loss, if "
        "it is your own, and at hooks.",
    )


def collapsed_entropy(course: Course, setup: Setup) -> Finding | None:
    entropy = course.mean("loss/entropy", 0.8, 1.0)
    if setup.uniform_entropy is None or entropy is None or entropy > COLLAPSED * setup.uniform_entropy:
        return None
    return Finding(
        "Entropy collapsed",
        f"the entropy of the policy is {entropy:.2g}; uniformly drawn actions have {setup.uniform_entropy:.2f}",
        "The agent always does the same in the same situation, and no longer tries anything else.",
        "a larger trainer.ppo.ent_coef (0.02), or a lower trainer.optimizer.learning_rate.",
    )


def unexplained_returns(course: Course, setup: Setup) -> Finding | None:
    explained = course.mean("value/explained_variance", 0.5, 1.0)
    if explained is None or explained > EXPLAINED:
        return None
    return Finding(
        "Values explain nothing",
        f"the values explain {max(explained, 0.0):.0%} of the variance of the returns in the second half of the run",
        "As far as the agent can tell, returns are random: either what decides them is not in its observations (or "
        "must be remembered), or rewards are noise, or the critic does not learn.",
        "trainer.memory=carry: it is off, so nothing is remembered."
        if setup.memory == "off"
        else "engram check-env, to see observations and rewards; a larger trainer.ppo.vf_coef or trainer.bptt_horizon.",
    )


def destroyed(course: Course) -> bool:
    """Whether an update destroyed policy and values: a better return is then not learned, as actions never change."""
    kl, explained = course.columns["loss/kl"], course.mean("value/explained_variance", 0.5, 1.0)
    return len(kl.steps) > 0 and kl.high.max() >= DESTROYING_KL and explained is not None and explained <= EXPLAINED


def acts_at_random(course: Course, setup: Setup) -> bool:
    entropy = course.mean("loss/entropy", 0.5, 1.0)
    return setup.uniform_entropy is not None and entropy is not None and entropy >= UNIFORM * setup.uniform_entropy


def at_ceiling(course: Course, setup: Setup) -> bool:
    """Whether the return at the end is at most what policies without memory reach."""
    if setup.ceiling is None or setup.goal is None or not len(course.returns.steps):
        return False
    return course.last <= setup.ceiling + CEILING_BAND * (setup.goal - setup.ceiling)


def below_ceiling(course: Course, setup: Setup) -> bool:
    """Whether the return at the end is clearly less than what policies without memory reach."""
    if setup.ceiling is None or setup.goal is None or not len(course.returns.steps):
        return False
    return course.last < setup.ceiling - CEILING_BAND * (setup.goal - setup.ceiling)


def _rises(course: Course) -> bool:
    """Whether the return was still rising in the second half of the run."""
    middle, end = course.mean("episode/return", 0.4, 0.6), course.mean("episode/return", 0.85, 1.0)
    return middle is not None and end is not None and end - middle > max(3 * course.noise, 0.05 * course.range)


def _against_ceiling(course: Course, setup: Setup) -> str:
    return f"{course.last:.3g}, and {setup.ceiling:.3g} is the best without memory ({setup.goal:.3g} with it)"


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()
