"""Checks the documentation: relative links exist, the settings of commands are valid, Python code compiles."""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from engram.cli.main import VERBS
from engram.config.load import load
from engram.runs.group import expand
from engram.settings import UserError

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```([^`\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"^Save this as `(\S+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)  # commands may use it
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")
TARGET = re.compile(r"^([\w-]+):", re.MULTILINE)
SETTINGS = ("train", "validate")  # verbs that take the settings of a run
PLACEHOLDERS = ("…", "...", "NAME", "VALUE", "CLASS", "FILE", "path/to/")


def main() -> int:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    problems = [f"{page.relative_to(ROOT)}: {problem}" for page in sorted(pages) for problem in check(page)]
    print("\n".join(problems) or f"{len(pages)} pages are valid")
    return 1 if problems else 0


def check(page: Path) -> Iterator[str]:
    """The problems of a page."""
    text = page.read_text(encoding="utf-8")
    for link, _ in LINK.findall(FENCE.sub("", text)):
        if "://" not in link and not link.startswith("mailto:") and not (page.parent / link).exists():
            yield f"broken link {link}"
    with TemporaryDirectory() as folder, chdir(folder):
        for name, code in SAVED.findall(text):
            Path(name).write_text(code, encoding="utf-8")
        for language, code in FENCE.findall(text):
            if language == "python":
                yield from _check_python(code)
            elif language in ("", "sh", "bash", "console"):
                for line in code.replace("\\\n", " ").splitlines():
                    yield from _check_command(line.strip().removeprefix("$ "))


def _check_python(code: str) -> Iterator[str]:
    try:
        compile(code, "documentation", "exec")
    except SyntaxError as error:
        yield f"Python that does not compile, line {error.lineno} of the block: {error.msg}"


def _check_command(line: str) -> Iterator[str]:
    """Check a command of ours, unless it holds a placeholder."""
    line = line.partition(" #")[0]
    if not line.startswith(("engram ", "./tools/train.py", "make ")) or any(mark in line for mark in PLACEHOLDERS):
        return
    command, *words = shlex.split(line)
    if command == "make":
        targets = TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
        yield from (f"`{line}`: make has no {word}" for word in words if "=" not in word and word not in targets)
        return
    verb, *words = words if command == "engram" else ["train", *words]
    if not verb.startswith("-") and verb not in VERBS:
        yield f"`{line}`: engram has no verb {verb}"
    if verb in SETTINGS and "--help" not in words:
        try:
            if expand(words) is None:
                load(words)
        except UserError as error:
            yield from (f"`{line}`: {problem}" for problem in str(error).splitlines())


if __name__ == "__main__":
    sys.exit(main())
