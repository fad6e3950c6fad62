"""Audits of a policy that is being trained: the cheap checks, on a copy, and an end to the run if one fails."""

from collections.abc import Sequence

from engram.agent.metta_agent import MettaAgent
from engram.audit.result import CheckResult
from engram.audit.run import cheap_checks
from engram.settings import UserError


class MemoryWrongError(UserError):
    """What is trained handles its memory wrongly; the last good checkpoint is still there."""

    exit_code = 1


def stop_if_wrong(agent: MettaAgent) -> None:
    """Raise if the agent's memory is not handled right. Nothing of the agent is changed, and no random number drawn."""
    failures = [result for result in cheap_checks(agent, agent.env_spec) if not result.passed]
    if failures:
        raise MemoryWrongError(_message(agent, failures))


def _message(agent: MettaAgent, failures: Sequence[CheckResult]) -> str:
    policy, count = type(agent.policy).__name__, len(failures)
    told = [
        f"{result.name}: {result.said}. {result.consequence} Look at {result.where}. {result.fix}"
        for result in failures
    ]
    return "\n".join(
        [
            f"trainer.audit: the memory of {policy} is not handled right ({count} of the checks that are made while "
            "training fail). This epoch was not saved.",
            *told,
            "`engram audit` on the run or the policy makes all checks, and shows pictures with --html FILE.",
        ]
    )
