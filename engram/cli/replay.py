"""`engram replay run=NAME [SETTING=VALUE …] [--out FILE]`: record an episode and show what the agent remembers."""

import os
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.arguments import ArgumentParser, add_page_options, add_trust_option, page_path
from engram.config.evaluation import ReplaySettings, RunRequest, load_request
from engram.settings import UserError
from engram.stored.files import check_writable
from engram.training.settings import EVALUATION_SEED

if TYPE_CHECKING:
    from engram.analysis.recording import Recording

VIDEOS = (".gif", ".mp4")

DESCRIPTION = """Plays whole episodes with the policy of a run and writes one self-contained HTML page. It shows the
world, the action probabilities, the memory, and which earlier steps matter for the action under the cursor."""

SETTINGS = f"""settings and their defaults:
  run=NAME             the run, or the path of its directory
  runs_dir=runs        the directory that holds the runs
  checkpoint=latest    or best, or the path of a checkpoint
  episodes=null        whole episodes; null: as many as it takes for 64 steps
  max_steps=1000       stop after as many steps, even within an episode
  greedy=false         true: the most likely action; false: sampled, as in training
  seed={EVALUATION_SEED}       of the episodes: the first ones of `engram eval` with this seed and num_envs=1
  device=auto          auto, cpu, cuda or mps
  env.SETTING=VALUE    change the run's environment
  env=CHOICE           a different environment

examples:
  engram replay run=fast_tmaze --open
  engram replay run=fast_tmaze episodes=1 seed=7 greedy=true --out seven.html --video seven.gif"""


def main(argv: Sequence[str]) -> int:
    usage = "engram replay run=NAME [SETTING=VALUE …] [--out FILE] [--open] [--video FILE]"
    parser = ArgumentParser(prog="engram replay", usage=usage, description=DESCRIPTION, epilog=SETTINGS)
    add_page_options(parser, "replay.html in the run's directory")
    parser.add_argument(
        "--video", type=Path, metavar="FILE", help="also write a .gif or .mp4 (needs the extra `video`)"
    )
    parser.add_argument(
        "--mettagrid", type=Path, metavar="FILE", help="also write the first episode as a mettagrid replay, FILE.json.z"
    )
    add_trust_option(parser)
    options, overrides = parser.parse_settings(argv)
    for kind in ("VIDEO", "AUDIO"):  # pygame draws into arrays; without a screen it would print warnings
        os.environ.setdefault(f"SDL_{kind}DRIVER", "dummy")
    request = load_request(overrides, ReplaySettings, options.trust)
    out = page_path(options.out, request.directory, "replay.html")
    _check_files(out, options.video, options.mettagrid)
    recording = play(request, out, options.video)
    if options.mettagrid:
        _write_mettagrid(request, recording, options.mettagrid)
    if options.open:
        webbrowser.open(out.resolve().as_uri())
    return 0


def play(request: RunRequest[ReplaySettings], out: Path, video: Path | None) -> "Recording":
    """Record, and write the page and the video."""
    # Imported here: torch takes seconds, and a mistyped option should be reported at once.
    from engram.analysis.influence import influence
    from engram.analysis.memory_step import unit_names
    from engram.analysis.recording import record
    from engram.api.evaluate import load_requested_agent
    from engram.display.formatting import plural
    from engram.display.replay_page import RunFacts, replay_page

    _, settings, run = request
    agent, checkpoint = load_requested_agent(request)
    recording = record(
        agent,
        run.env,
        episodes=settings.episodes,
        max_steps=settings.max_steps,
        greedy=settings.greedy,
        seed=settings.seed,
        memory=run.trainer.memory,
    )
    past = influence(agent, recording)
    progress = checkpoint.state["progress"]
    facts = RunFacts(run.run, run.policy.name, progress["epoch"], progress["steps"], run.trainer.memory != "off")
    page = replay_page(facts, recording, past, unit_names(agent))
    out.write_text(page, encoding="utf-8")
    played = f"{plural(recording.steps, 'step')} in {plural(len(recording.episode_starts), 'episode')}"
    print(f"{played}: {out} ({len(page) / 1e6:.1f} MB)")
    if video is not None:
        from engram.display.video import write_video

        write_video(video, recording, past)
        print(f"video: {video}")
    return recording


def _write_mettagrid(request: RunRequest[ReplaySettings], recording: "Recording", path: Path) -> None:
    from engram.env.mettagrid.adapter import write_replay

    ends = [*recording.episode_starts[1:], recording.steps]
    write_replay(request.run.env, request.settings.seed, recording.actions[: ends[0]], path)
    print(f"mettagrid replay: {path}")


def _check_files(out: Path, video: Path | None, mettagrid: Path | None) -> None:
    """Raises before anything is played if a file cannot be written."""
    check_writable(out, "--out")
    if mettagrid is not None:
        check_writable(mettagrid, "--mettagrid")
    if video is None:
        return
    if video.suffix.lower() not in VIDEOS:
        raise UserError(f"--video: {video} has no known format: name it .gif or .mp4")
    check_writable(video, "--video")
    from engram.display.video import check_installed

    check_installed()
