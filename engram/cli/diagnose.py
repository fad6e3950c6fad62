"""`engram diagnose run=NAME [--json]`: explain why a run does not learn, with evidence and what to try."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.arguments import ArgumentParser, add_trust_option
from engram.cli.run_arguments import named_runs
from engram.diagnosis.rules import MEMORY_UNUSED
from engram.settings import UserError

if TYPE_CHECKING:
    from engram.runs.report import ReportRun

DESCRIPTION = """Reads the metrics and settings of runs and says what is wrong, what was seen, what it means and what to
try. If memory seems unused, it also measures the memory horizon of the last checkpoint, which builds the policy and the
environment. A run that learns gets no alarm; if nothing explains why a run does not learn, the diagnosis is
"unknown"."""

EXAMPLES = """examples:
  engram diagnose run=fast_tmaze
  engram diagnose 'fast_tmaze_seed-*' --json"""

EPISODES = 32  # to measure the memory horizon


def main(argv: Sequence[str]) -> int:
    usage = "engram diagnose RUN … [runs_dir=runs] [--json] [--trust]"
    parser = ArgumentParser(prog="engram diagnose", usage=usage, description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("--json", action="store_true", help="print one JSON object for each run")
    add_trust_option(parser)
    options, arguments = parser.parse_settings(argv)
    directories = named_runs("diagnose", arguments)
    from engram.display.summary import diagnosis_lines
    from engram.runs.report import read_report_run

    for number, directory in enumerate(directories):
        run = read_report_run(directory)
        extra = memory_evidence(run, options.trust)
        if options.json:
            print(json.dumps({"run": run.name, **run.diagnosis.to_json(), "memory_horizon": extra}))
            continue
        if len(directories) > 1:
            print(("\n" if number else "") + f"== {run.name}")
        print("\n".join(diagnosis_lines(run.diagnosis, extra)))
    return 0


def memory_evidence(run: "ReportRun", trust: bool) -> list[str]:
    """Sentences about the memory horizon of the last checkpoint, if the diagnosis is that memory is not used."""
    if MEMORY_UNUSED not in [finding.name for finding in run.diagnosis.findings]:
        return []
    try:
        return measured_horizon(run.directory, trust)
    except UserError as error:
        return [f"The memory horizon was not measured: {error}"]


def measured_horizon(directory: Path, trust: bool) -> list[str]:
    from engram.analysis.influence import memory_horizon
    from engram.analysis.recording import record
    from engram.api.evaluate import load_requested_agent
    from engram.config.evaluation import MemorySettings, load_request
    from engram.display.memory_page import about_horizon

    request = load_request([f"run={directory.resolve()}", "device=cpu"], MemorySettings, trust)
    agent, _ = load_requested_agent(request)
    recording = record(agent, request.run.env, episodes=1, num_envs=EPISODES, max_steps=1000, pictures=False)
    horizon = memory_horizon(agent, recording)
    return about_horizon(horizon and horizon.to_json(), request.run.trainer.bptt_horizon)
