"""Audits a training loop: runs it with a recording environment and a recording policy that is known to be right.

The loop must learn from exactly what it played.
"""

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from engram.audit.recording import (
    ENDS,
    NOT_CLEARED,
    ROWS,
    STEPS,
    ZERO_INSIDE,
    EndOfAudit,
    RecordingEnv,
    RecordingPolicy,
)
from engram.audit.result import AuditReport, CannotAuditError, CheckResult

QUESTIONS = {
    "loop_observations": (
        "Does the policy see the environment's observations?",
        "Pass observations on as the environment returns them, for this audit without normalisation.",
    ),
    "loop_acting": (
        "When acting, is each row's state carried on, and cleared where its episode starts?",
        "Keep the state that the policy returns, by row; pass starts = terminated | truncated of the step before.",
    ),
    "loop_order": (
        "Is each learned sequence made of consecutive steps of one row?",
        "Flatten and sample whole rows, time first: buffer[:, rows].reshape(T * len(rows), …).",
    ),
    "loop_start_state": (
        "Is each sequence learned from the state that its row had before its first step?",
        "Store a copy of the state before the rollout: state.clone(), not a reference that acting overwrites.",
    ),
    "loop_starts": (
        "Is learning told of episode starts exactly where they are?",
        "Store with each observation whether it is the first of an episode, terminated or truncated.",
    ),
    "loop_actions": (
        "Does learning judge the actions that were taken?",
        "Store actions with the observations they were chosen for, in the same order.",
    ),
    "loop_replay": (
        "Before any update, does learning give back the logits of acting?",
        "See the questions above: with the same observations, state and starts the outputs are the same.",
    ),
}
SHOWN = 4  # steps that are listed
EFFECT = "What is learned from is not what was played: ratios are wrong from the first update."


def audit_loop(function: Callable[..., Any], name: str) -> AuditReport:
    """Run `function(env, policy)` until it ends or has played enough, and report on its calls."""
    env = RecordingEnv()
    policy = RecordingPolicy(env)
    try:
        function(*_arguments(function, env, policy, name))
    except EndOfAudit:
        pass
    except Exception as error:
        raise CannotAuditError(f"{name} raises {type(error).__name__}: {error}") from error
    if not policy.seen["loop_order"]:
        raise CannotAuditError(
            f"{name} never learned from what it played in {STEPS} steps of {ROWS} rows: it must call "
            "policy(obs, state, starts) with sequences, or policy.get_action_and_value(x, state, done, action)"
        )
    results = tuple(_result(policy, name, question) for question in QUESTIONS)
    parameters = sum(p.numel() for p in policy.parameters())
    return AuditReport(name, "the loop's calls", "loop", "recording environment", 0, parameters, results)


def _arguments(function: Callable[..., Any], env: RecordingEnv, policy: RecordingPolicy, name: str) -> list[Any]:
    names = list(inspect.signature(function).parameters)
    if len(names) < 2:
        raise CannotAuditError(
            f"{name} must take an environment and a policy: def train(env, policy), not ({', '.join(names)})"
        )
    reverse = names[0] in ("policy", "agent", "model", "network")
    return [policy, env] if reverse else [env, policy]


def _result(policy: RecordingPolicy, name: str, question: str) -> CheckResult:
    problems, asked = _problems(policy, question), policy.seen[question]
    finding = "; ".join(f"{text} ({count} times)" for text, count in problems.items())
    if question == "loop_replay":
        error = f"logits differ by at most {policy.replay_error:.2g}"
        finding = f"{finding}; {error}" if finding else error
    text, fix = QUESTIONS[question]
    status = "fail" if problems else "pass" if asked else "skip"
    finding = finding or (f"right in all {asked} cases" if asked else "the loop does not do this")
    count, cause = float(sum(problems.values())), max(problems, key=lambda each: problems[each], default="")
    return CheckResult(question, text, status, count, 0, False, finding, EFFECT, name, fix, cause)  # type: ignore[arg-type]


def _problems(policy: RecordingPolicy, question: str) -> Counter[str]:
    """The problems of a question, with cases of the same fault merged into one text."""
    problems = policy.problems[question].copy()
    kinds = [text for text in problems if text.startswith(NOT_CLEARED)]
    if len({text.rpartition(" ")[2] for text in kinds} & set(ENDS)) == len(ENDS):
        problems[NOT_CLEARED] = sum(problems.pop(text) for text in kinds)
    if ZERO_INSIDE in problems and (pattern := _zeroed_where(policy)):
        problems[pattern] = problems.pop(ZERO_INSIDE)
    return problems


def _zeroed_where(policy: RecordingPolicy) -> str:
    """The pattern of the steps inside episodes at which the state is zero; empty if it is zero at most of them."""
    started = {step.number for step in policy.played if step.start}
    if policy.zeroed <= started and len(policy.zeroed) >= len(started) / 2:
        return "the states of all rows are zeroed where one of them starts an episode"
    if len(policy.zeroed) < max(map(len, policy.by_row.values()), default=0) / 2:
        steps = ", ".join(map(str, sorted(policy.zeroed)[:SHOWN])) + ", …" * (len(policy.zeroed) > SHOWN)
        return f"the state is zeroed inside episodes at steps {steps}, as by a reset before every rollout"
    return ""
