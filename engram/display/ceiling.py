"""The memoryless ceiling: what a policy without memory reaches at most, and from where on it is passed beyond doubt."""

from engram.env.spec import EnvSpec

# A mean over some two hundred episodes of a coin toss strays by up to this share of the way to the goal.
LUCK = 0.2


def beyond_luck(env: EnvSpec) -> float | None:
    """A return above this takes memory; None where the ceiling is not known."""
    ceiling, goal = env.memoryless_ceiling, env.mean_return_goal
    if ceiling is None or goal is None:
        return ceiling
    return ceiling + LUCK * (goal - ceiling)
