"""`engram sweep FILE.yaml [runs_dir=runs]`: search settings with Optuna."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from engram.cli.arguments import ArgumentParser
from engram.cli.run_arguments import split_arguments
from engram.cli.train import train_one
from engram.config.load import load
from engram.config.sweep import command_line, first_values, load_sweep, trial_settings
from engram.cores import available_cores
from engram.env.registry import make_spec
from engram.runs.group import say
from engram.settings import UserError

DESCRIPTION = """Searches settings with Optuna. Each trial is a run with one thread, one at a time for each core.
The same command again continues the study and resumes trials that were killed. Several machines can work on one
study if its storage is a database that all of them reach. See docs/many-runs.md."""

EXAMPLE = """a sweep file:
  settings: [env=tmaze, trainer.total_timesteps=200_000]
  trials: 40
  search:
    trainer.optimizer.learning_rate: {low: 1e-4, high: 1e-2, log: true}
    trainer.bptt_horizon: {choices: [16, 32, 64]}"""


def main(argv: Sequence[str]) -> int:
    usage = "engram sweep FILE.yaml [runs_dir=runs]"
    parser = ArgumentParser(prog="engram sweep", usage=usage, description=DESCRIPTION, epilog=EXAMPLE)
    _, arguments = parser.parse_settings(argv)
    runs_dir, files = split_arguments("sweep", arguments, "write settings into the file, under settings: [NAME=VALUE]")
    if len(files) != 1:
        raise UserError("sweep: give one file: engram sweep FILE.yaml (see --help for an example)")
    if find_spec("optuna") is None:
        raise UserError("sweep: needs Optuna: pip install 'engram-rl[sweep]'")
    sweep = load_sweep(Path(files[0]))
    env = load(trial_settings(sweep, first_values(sweep))).env
    make_spec(env)  # an environment that cannot be made leaves no study behind
    from engram.runs.sweep import Sweep  # imports Optuna

    storage = sweep.storage or os.path.join(runs_dir, f"{sweep.study}.db")
    parallel = sweep.parallel or available_cores()
    found = Sweep(sweep, runs_dir, storage, say).work(train_one, parallel, env.kind)
    say(f"{found.complete} complete, {found.pruned} pruned, {found.failed} failed; the study is in {storage}")
    if found.best is None:
        return 1
    values = " ".join(command_line(sweep, found.best.params, f"{sweep.study}_best"))
    say(f"best: trial {found.best.number} with {sweep.metric} {found.best.value:.4g}:\n  engram train {values}")
    return 0
