"""`engram validate [SETTING=VALUE …]`: check settings and print them in full, without training."""

from collections.abc import Sequence

from engram.cli.arguments import add_trust_option
from engram.cli.settings_help import settings_parser
from engram.config.load import dump, load
from engram.cores import available_cores
from engram.env.registry import make_spec
from engram.training.sizes import resolve_sizes


def main(argv: Sequence[str]) -> int:
    parser = settings_parser("validate", "Checks settings and prints them in full.")
    add_trust_option(parser)
    options, overrides = parser.parse_settings(argv)
    settings = load(overrides, options.trust)
    agents, cores = make_spec(settings.env).agents, available_cores()
    sizes = resolve_sizes(settings.trainer, agents, settings.device, cores)
    print(dump(settings), end="")
    device = "a CPU" if settings.device == "auto" else settings.device
    print(f"\n# Sizes on {device} with {cores} core{'s' * (cores > 1)}, unless given above:")
    for name, size in sizes._asdict().items():
        print(f"#   {name}: {size}")
    return 0
