"""`make bench ARGS="VERB …"`: races against other systems and plots; all other verbs are those of `engram bench`."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import learning, plots, story, worker_kills
from bench.peers import solve
from bench.peers.catalogue import PEERS
from bench.peers.race import DEFAULT_VENVS, TASKS, PeerOptions, measure
from engram.cli.arguments import names_from, positive_int
from engram.cli.bench import benchmark_parser, options_from, report
from engram.cli.main import main as engram
from engram.settings import UserError

HELP = """
Only here (make bench ARGS="VERB …"):
  peers     Engram and other systems at the same work
  solve     seconds until a task is solved, Engram and other systems
  story     what memory bugs do to learning, and what tells
  learning  collect runs into one result file
  worker-kills
            an hour of training with a worker killed each minute
  plot      plot results: races as bars, runs as learning curves"""


def main(argv: Sequence[str]) -> int:
    verb, *rest = argv or ["--help"]
    try:
        if verb in OWN_VERBS:
            return OWN_VERBS[verb](rest)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    code = engram(["bench", *argv])
    if verb in ("--help", "-h"):
        print(HELP)
    return code


def _peers(argv: Sequence[str]) -> int:
    parser = benchmark_parser("make bench ARGS=peers", "Engram and other systems at the same work")
    parser.set_defaults(seconds=3.0, rounds=6)
    parser.add_argument("--tasks", type=names_from(tuple(TASKS)), metavar="NAME,…", help=", ".join(TASKS))
    parser.add_argument("--peers", type=names_from(tuple(PEERS)), metavar="NAME,…", help=", ".join(PEERS))
    parser.add_argument("--install", action="store_true", help="first install the peers that are missing")
    parser.add_argument("--venvs", type=Path, default=DEFAULT_VENVS, help="where peers are installed")
    parser.add_argument(
        "--learn", type=positive_int, metavar="STEPS", help="compare returns on CartPole too, after STEPS"
    )
    arguments = parser.parse_args(argv)
    options = options_from(arguments, PeerOptions)
    report("peers", arguments, lambda progress: measure(options, progress))
    return 0


OWN_VERBS = {
    "peers": _peers,
    "solve": solve.main,
    "story": story.main,
    "learning": learning.main,
    "worker-kills": worker_kills.main,
    "plot": plots.main,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that programs it has started are stopped too
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("stopped; the same command keeps what is finished")
