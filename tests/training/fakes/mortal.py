"""Policies that fail on rank 1 at a given call, for tests."""

import os
import signal

from engram.agent.policies.fast import Fast
from engram.settings import UserError

FAIL_AT = 70  # in the middle of the third epoch


class Mortal(Fast):
    """Rank 1 is killed once, and survives after torchrun has restarted all ranks."""

    calls = 0

    def decode_actions(self, hidden):
        Mortal.calls += 1
        if (
            os.environ["RANK"] == "1"
            and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
            and Mortal.calls == FAIL_AT
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decode_actions(hidden)


class Failing(Fast):
    """Rank 1 stops with a message."""

    calls = 0

    def decode_actions(self, hidden):
        Failing.calls += 1
        if os.environ["RANK"] == "1" and Failing.calls == FAIL_AT:
            raise UserError("this policy has had enough")
        return super().decode_actions(hidden)


class Exploding(Fast):
    """Rank 1 computes a NaN, which reaches all ranks."""

    calls = 0

    def decode_actions(self, hidden):
        Exploding.calls += 1
        logits, value = super().decode_actions(hidden)
        return logits, value * (float("nan") if os.environ["RANK"] == "1" and Exploding.calls >= FAIL_AT else 1.0)
