"""`engram check-env env=… [env.SETTING=VALUE …]`: play an environment for a short while and report what is wrong."""

from collections.abc import Sequence

from engram.cli.settings_help import settings_parser
from engram.config.load import load
from engram.env.check import EnvCheck, check_environment
from engram.env.spec import EnvSpec


def main(argv: Sequence[str]) -> int:
    parser = settings_parser("check-env", "Plays an environment for a short while and reports what is wrong.")
    _, overrides = parser.parse_settings(argv)
    settings = load(overrides)
    check = check_environment(settings.env)
    if check.spec is not None:
        print("\n".join(_describe(check.spec)))
    for name, fact in check.facts.items():
        print(f"{name}: {fact}")
    for problem in (*check.errors, *check.warnings):
        print(f"problem: {problem}")
    print(_verdict(check))
    return 1 if check.errors or check.warnings else 0


def _describe(spec: EnvSpec) -> list[str]:
    lines = [f"{spec.name}: {spec.agents} agent{'s' * (spec.agents > 1)}, actions {spec.single_action_space}"]
    for part in spec.all_parts:
        symbols = f" of {', '.join(map(str, part.symbols))} values" if part.symbols else ""
        shape = " x ".join(map(str, part.shape)) or "one"
        lines.append(f"observation{f' {part.name!r}' if part.name else ''}: {part.kind}, {shape} {part.dtype}{symbols}")
    return [*lines, "action masks: yes"] if spec.action_mask else lines


def _verdict(check: EnvCheck) -> str:
    if check.errors:
        return "Training in it is not possible."
    count = len(check.warnings)
    return f"{count} problem{'s' * (count > 1)} found; training is possible." if count else "No problem was found."
