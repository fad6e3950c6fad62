"""Policies that fail in one of several processes, when its memory of steps says so: for tests."""

import os
import signal

from engram.agent.policies.fast import Fast
from engram.settings import UserError

LAST = 70  # the call that is not survived: in the middle of the third epoch


class Mortal(Fast):
    """The second process is killed once; after torchrun has started all of them again, it lives."""

    calls = 0

    def decode_actions(self, hidden):
        Mortal.calls += 1
        if os.environ["RANK"] == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and Mortal.calls == LAST:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decode_actions(hidden)


class Failing(Fast):
    """The second process stops with a message."""

    calls = 0

    def decode_actions(self, hidden):
        Failing.calls += 1
        if os.environ["RANK"] == "1" and Failing.calls == LAST:
            raise UserError("this policy has had enough")
        return super().decode_actions(hidden)


class Exploding(Fast):
    """One process computes what is not a number; all of them get to know."""

    calls = 0

    def decode_actions(self, hidden):
        Exploding.calls += 1
        logits, value = super().decode_actions(hidden)
        return logits, value * (float("nan") if os.environ["RANK"] == "1" and Exploding.calls >= LAST else 1.0)
