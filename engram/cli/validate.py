"""Check settings and print them in full, without training: `engram validate [SETTING=VALUE …]`."""

from collections.abc import Sequence

from engram.cli.guide import guide
from engram.config.load import dump, load
from engram.cores import available_cores
from engram.env.registry import make_spec
from engram.training.sizes import resolve_sizes


def main(words: Sequence[str]) -> int:
    if {"--help", "-h"} & {*words}:
        print(guide("validate"))
        return 0
    settings = load(words)
    agents, cores = make_spec(settings.env).agents, available_cores()
    sizes = resolve_sizes(settings.trainer, agents, settings.device, cores)
    print(dump(settings), end="")
    place = "a CPU" if settings.device == "auto" else settings.device
    print(f"\n# Sizes on {place} with {cores} core{'s' * (cores > 1)}, as far as they are not given above:")
    for name, size in sizes._asdict().items():
        print(f"#   {name}: {size}")
    return 0
