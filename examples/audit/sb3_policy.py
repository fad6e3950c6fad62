"""Audit the policy of sb3-contrib's RecurrentPPO (`pip install sb3-contrib`):

python examples/audit/sb3_policy.py
engram audit examples/audit/sb3_policy.py:make env=recall

One check fails: a NaN in memory survives an episode start, because sb3-contrib multiplies memory by 1 - start. With
dropout in its LSTM (`make_with_dropout`) more fail, and the report says why.
"""

from engram.audit import AuditError, check
from engram.env.registry import make_spec
from engram.env.settings import Recall


def make(env, **policy_kwargs):
    """As RecurrentPPO makes it; of an algorithm that exists, give `model.policy`."""
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy

    spaces = env.single_observation_space, env.single_action_space
    return RecurrentActorCriticPolicy(*spaces, lr_schedule=lambda _: 3e-4, lstm_hidden_size=32, **policy_kwargs)


def make_with_dropout(env):
    return make(env, n_lstm_layers=2, lstm_kwargs={"dropout": 0.2})


if __name__ == "__main__":
    spec = make_spec(Recall())
    try:
        check(make(spec), spec)
    except AuditError as error:
        print(error)
