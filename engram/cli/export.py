"""`engram export run=NAME [--format onnx|torch] [--out PATH]`: write a policy as a file that runs without Engram."""

from collections.abc import Sequence
from pathlib import Path

from engram.cli.arguments import ArgumentParser, add_trust_option
from engram.config.evaluation import PolicyOfRun, RunRequest, load_request
from engram.stored.files import file_in_run

DESCRIPTION = """Writes the policy of a run as one file that runs without Engram, in onnxruntime or PyTorch: a step
(observations, memory, starts) -> (action, log-probabilities, value, memory), for any number of rows. Before the file
appears, it plays 1,000 steps in the run's environment and must take the same actions, except where two are equally
likely up to rounding. See docs/export.md."""

SETTINGS = """settings and their defaults:
  run=NAME             the run, or the path of its directory
  runs_dir=runs        the directory that holds the runs
  checkpoint=latest    or best, or the path of a checkpoint
  env=CHOICE           export for a different environment, as `engram eval` plays it; env.SETTING=VALUE likewise

examples:
  engram export run=fast_tmaze
  engram export run=fast_tmaze checkpoint=best --format torch --out fast.pt2"""


def main(argv: Sequence[str]) -> int:
    usage = "engram export run=NAME [SETTING=VALUE …] [--format onnx|torch] [--out PATH] [--trust]"
    parser = ArgumentParser(prog="engram export", usage=usage, description=DESCRIPTION, epilog=SETTINGS)
    parser.add_argument("--format", choices=("onnx", "torch"), help="default: by the suffix of --out, else onnx")
    parser.add_argument("--out", type=Path, metavar="PATH", help="the file; default: policy.onnx or .pt2 in the run")
    add_trust_option(parser)
    options, overrides = parser.parse_settings(argv)
    _export(load_request(overrides, PolicyOfRun, options.trust), options.format, options.out)
    return 0


def _export(request: RunRequest[PolicyOfRun], format_name: str | None, out: Path | None) -> None:
    # Imported here: torch takes seconds, and a mistyped option should be reported at once.
    from engram.env.registry import make_spec
    from engram.export.program import FORMATS, require_packages
    from engram.export.write import choose_format, export_agent
    from engram.training.checkpoint.loading import checkpoint_of, load_agent

    directory, settings, run = request
    name = choose_format(out, format_name)
    require_packages(name)
    checkpoint = checkpoint_of(directory, settings.checkpoint)
    agent = load_agent(checkpoint, run.policy, make_spec(run.env), training=False)
    export = export_agent(
        agent,
        out or file_in_run(directory, f"policy{FORMATS[name].suffix}", "--out"),
        name,
        run.env,
        use_memory=run.trainer.memory != "off",
        origin={"run": run.run, "steps": checkpoint.state["progress"]["steps"]},
    )
    print(f"{export.path}: {export.agreement.describe(FORMATS[name].runtime)}")
    for kind in ("inputs", "outputs"):
        print(f"  {kind:<8}", " · ".join(_shown(tensor) for tensor in export.metadata[kind]))


def _shown(tensor: dict) -> str:
    return f"{tensor['name']} [{', '.join(map(str, tensor['shape']))}] {tensor['dtype']}"
