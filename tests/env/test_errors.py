"""User code that fails while it is imported or built becomes one message with the location of the failure."""

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from engram.env.errors import describe_exception, explained
from engram.env.registry import make_spec
from engram.env.settings import Gym, PettingZoo
from engram.env.wrappers import wrap
from engram.settings import UserError

FRAGILE = """
import gymnasium
from pettingzoo import ParallelEnv

class Cave(gymnasium.Env):
    def __init__(self, depth=0):
        raise {error}("the cave fell in")

class Spaceless(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)

    @property
    def observation_space(self):
        raise LookupError("no space")

class Wrapped(gymnasium.Wrapper):
    def __init__(self, env):
        raise LookupError("too tight")

class Bare(gymnasium.Wrapper):
    def __init__(self):
        pass

def parallel_env():
    raise LookupError("nobody is there")

gymnasium.register("engram-test/Cave-v0", Cave)
gymnasium.register("engram-test/Spaceless-v0", Spaceless)
"""


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module whose parts cannot be made. Beside it are some that cannot be imported."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raising.py").write_text("def begin():\n    raise LookupError('not today')\n\nbegin()")
    (tmp_path / "ending.py").write_text("raise SystemExit('give a file')")
    (tmp_path / "untidy.py").write_text("class Mine(")
    path = tmp_path / "fragile.py"
    path.write_text(FRAGILE.format(error="LookupError"))
    yield path
    sys.modules.pop("fragile", None)


def message_lines(make) -> list[str]:
    with pytest.raises(UserError) as caught:
        make()
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


@pytest.mark.parametrize("error", ["LookupError", "TypeError", "ValueError"])
def test_an_environment_that_cannot_be_built_is_reported_with_its_location(fragile: Path, error: str) -> None:
    fragile.write_text(FRAGILE.format(error=error))
    first, *frames = message_lines(lambda: make_spec(Gym(id="fragile:engram-test/Cave-v0")))
    assert first == f"env.id: fragile:engram-test/Cave-v0 cannot be used: {error}: the cave fell in"
    assert frames[-1] == f'  {fragile}:7 in __init__: raise {error}("the cave fell in")'


def test_failing_spaces_are_reported_with_their_location(fragile: Path) -> None:
    first, *frames = message_lines(lambda: make_spec(Gym(id="fragile:engram-test/Spaceless-v0")))
    assert first.endswith("cannot be used: LookupError: no space")
    assert "in observation_space" in frames[-1]


def test_a_parallel_environment_that_cannot_be_built_is_reported_with_its_location(fragile: Path) -> None:
    first, *frames = message_lines(lambda: make_spec(PettingZoo(module="fragile")))
    assert first == "env.module: fragile cannot be used: LookupError: nobody is there"
    assert frames == [f'  {fragile}:25 in parallel_env: raise LookupError("nobody is there")']


def test_a_failing_wrapper_is_reported_with_its_location(fragile: Path) -> None:
    first, *frames = message_lines(lambda: wrap(gymnasium.make("CartPole-v1"), ["fragile:Wrapped"]))
    assert first.startswith("env.wrappers: fragile:Wrapped(env) does not fit around <")
    assert first.endswith(": LookupError: too tight")
    assert frames == [f'  {fragile}:18 in __init__: raise LookupError("too tight")']


def test_a_call_with_wrong_arguments_is_reported_without_a_location(fragile: Path) -> None:
    (line,) = message_lines(lambda: wrap(gymnasium.make("CartPole-v1"), ["fragile:Bare"]))
    assert line.endswith("TypeError: Bare.__init__() takes 1 positional argument but 2 were given")


@pytest.mark.parametrize(
    "make",
    [
        lambda module: make_spec(Gym(id=f"{module}:Cave-v0")),
        lambda module: make_spec(PettingZoo(module=module)),
        lambda module: wrap(gymnasium.make("CartPole-v1"), [f"{module}:Wrapped"]),
    ],
    ids=["gym", "pettingzoo", "wrapper"],
)
def test_a_module_that_cannot_be_imported_is_reported_with_its_location(fragile: Path, make) -> None:
    first, *frames = message_lines(lambda: make("raising"))
    assert first.startswith("env.")
    assert first.endswith(": LookupError: not today")
    assert [frame.split(" in ")[1] for frame in frames[-2:]] == [
        "<module>: begin()",
        "begin: raise LookupError('not today')",
    ]
    assert message_lines(lambda: make("ending"))[0].endswith(": SystemExit: give a file")
    assert message_lines(lambda: make("untidy"))[0].endswith(": SyntaxError: '(' was never closed (untidy.py, line 1)")


def test_a_user_error_is_not_explained_twice() -> None:
    def fail() -> None:
        with explained("all of it failed"):
            raise UserError("seed: wrong")

    assert message_lines(fail) == ["seed: wrong"]


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("\x1b[2J \udcff \0 é"), r"ValueError: \x1b[2J \udcff \x00 é"),
        (ValueError("x" * 10_000), "xx … (10,012 characters)"),
        (SpeechlessError(), "SpeechlessError: <exception str() failed>"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_an_exception_of_any_kind_has_a_text_that_can_be_printed(error: BaseException, text: str) -> None:
    assert describe_exception(error).endswith(text)


@pytest.mark.parametrize("error", [GeneratorExit, BaseException("odd"), SystemExit(3), LookupError("x")])
def test_users_code_may_raise_anything_but_an_interrupt(error) -> None:
    with pytest.raises(UserError, match="the cave: "), explained("the cave"):
        raise error
    with pytest.raises(KeyboardInterrupt), explained("the cave"):
        raise KeyboardInterrupt
