"""`engram eval run=NAME [SETTING=VALUE …] [--json]`: play whole episodes with a trained policy."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout

from engram.cli.arguments import ArgumentParser, add_trust_option
from engram.config.evaluation import EvalSettings, load_request
from engram.training.settings import EVALUATION_SEED

DESCRIPTION = """Plays whole episodes with the policy of a run. Prints return, length and the environment's statistics,
each with the 95% confidence interval of its mean."""

SETTINGS = f"""settings and their defaults:
  run=NAME             the run, or the path of its directory
  runs_dir=runs        the directory that holds the runs
  checkpoint=latest    or best, or the path of a checkpoint
  episodes=100         whole episodes, divided evenly among the environments
  greedy=false         true: the most likely action; false: sampled, as in training
  seed={EVALUATION_SEED}       of the episodes; the default is the same for every run and used by no training
  num_envs=32          environments stepped in parallel
  num_workers=0        worker processes that step them; 0: step them in this process
  device=auto          auto, cpu, cuda or mps
  env.SETTING=VALUE    change the run's environment
  env=CHOICE           a different environment: features are matched by name, unknown ones are masked

examples:
  engram eval run=fast_tmaze
  engram eval run=fast_tmaze checkpoint=best greedy=true episodes=500 --json"""


def main(argv: Sequence[str]) -> int:
    usage = "engram eval run=NAME [SETTING=VALUE …] [--json] [--trust]"
    parser = ArgumentParser(prog="engram eval", usage=usage, description=DESCRIPTION, epilog=SETTINGS)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, with return.mean, return.low and return.high"
    )
    add_trust_option(parser)
    options, overrides = parser.parse_settings(argv)
    request = load_request(overrides, EvalSettings, options.trust)
    # Imported here: torch takes seconds, and a mistyped option should be reported at once.
    from engram.api.evaluate import play
    from engram.display.evaluation import show

    if options.json:
        with _stdout_to_stderr():
            result = play(request).about
        print(json.dumps(result))
    else:
        show(play(request).about)
    return 0


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what simulators and libraries print, also in workers, to standard error: standard output is for the JSON."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
