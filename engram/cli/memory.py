"""`engram memory run=NAME [SETTING=VALUE …] [--out FILE] [--open] [--json]`: what an agent remembers, and how long."""

import json
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engram.cli.arguments import ArgumentParser, add_page_options, add_trust_option, page_path
from engram.config.evaluation import MemorySettings, RunRequest, load_request
from engram.settings import UserError
from engram.stored.files import check_writable, file_in_run
from engram.training.settings import EVALUATION_SEED

DESCRIPTION = """Plays many episodes with the policy of a run and reports what it remembers: the return with memory
erased, frozen or swapped; the memory horizon; and which facts a linear probe can read from memory at each step.
Writes an HTML page, and the same figures as JSON beside it."""

SETTINGS = f"""settings and their defaults:
  run=NAME             the run, or the path of its directory
  runs_dir=runs        the directory that holds the runs
  checkpoint=latest    or best, or the path of a checkpoint
  episodes=128         episodes to play; as many again for each change of memory
  greedy=false         true: the most likely action; false: sampled, as in training
  seed={EVALUATION_SEED}       of the episodes
  device=auto          auto, cpu, cuda or mps
  env.SETTING=VALUE    change the run's environment
  env=CHOICE           a different environment

examples:
  engram memory run=fast_tmaze --open
  engram memory run=fast_tmaze episodes=400 --out tmaze.html --json"""


def main(argv: Sequence[str]) -> int:
    usage = "engram memory run=NAME [SETTING=VALUE …] [--out FILE] [--open] [--json]"
    parser = ArgumentParser(prog="engram memory", usage=usage, description=DESCRIPTION, epilog=SETTINGS)
    add_page_options(parser, "memory.html in the run's directory")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object instead of sentences")
    add_trust_option(parser)
    options, overrides = parser.parse_settings(argv)
    request = load_request(overrides, MemorySettings, options.trust)
    if request.run.trainer.memory == "off":
        raise UserError(
            f"run: {request.settings.run} was trained with trainer.memory=off, so it has no memory to examine"
        )
    out = page_path(options.out, request.directory, "memory.html")
    if options.out is None:
        file_in_run(request.directory, "memory.json", "--out")
    check_writable(out, "--out")
    report, sentences = examine(request, out)
    print(json.dumps(report) if options.json else "\n".join([*sentences, "", f"Page: {out}"]))
    if options.open:
        webbrowser.open(out.resolve().as_uri())
    return 0


def examine(request: RunRequest[MemorySettings], out: Path) -> tuple[dict[str, Any], list[str]]:
    """Measure, and write the page and its JSON; returns the report and its verdict."""
    # Imported here: torch takes seconds, and a mistyped option should be reported at once.
    from engram.analysis.memory_report import memory_report
    from engram.api.evaluate import load_requested_agent
    from engram.display.memory_page import MemoryFacts, memory_page, verdict

    _, settings, run = request
    agent, checkpoint = load_requested_agent(request)
    progress = checkpoint.state["progress"]
    facts = MemoryFacts(
        run=run.run,
        env=agent.env_spec.name,
        policy=run.policy.name,
        epoch=progress["epoch"],
        steps=progress["steps"],
        bptt=run.trainer.bptt_horizon,
        greedy=settings.greedy,
        seed=settings.seed,
        ceiling=agent.env_spec.memoryless_ceiling,
    )
    report = memory_report(agent, run.env, settings.episodes, greedy=settings.greedy, seed=settings.seed).to_json()
    sentences = verdict(facts, report)
    out.write_text(memory_page(facts, report), encoding="utf-8")
    report = {**facts._asdict(), "verdict": sentences, **report}
    out.with_suffix(".json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report, sentences
