"""Races: turns, ratios, the best of each name, and contestants that fail."""

from contextlib import contextmanager

import pytest

from engram.bench.race import Contestant, Slice, run_race


def runner(name: str, speeds: list[float], seen: list[str] | None = None, **kwargs) -> Contestant:
    """A contestant with the given speeds, one per turn."""

    @contextmanager
    def opened():
        turns = iter(speeds)

        def measure(seconds: float) -> Slice:
            if seen is not None:
                seen.append(name)
            return Slice(next(turns) * seconds, seconds, {"learning": seconds / 4})

        yield measure

    return Contestant(name, opened, **kwargs)


def broken(name: str, error: Exception, when: str) -> Contestant:
    @contextmanager
    def opened():
        if when == "opened":
            raise error

        def measure(seconds: float) -> Slice:
            raise error

        yield measure

    return Contestant(name, opened)


def test_contestants_take_turns_and_the_order_reverses_every_round() -> None:
    seen: list[str] = []
    run_race("r", [runner("a", [1] * 3, seen), runner("b", [1] * 3, seen)], rounds=3, seconds=0.1)
    assert seen == ["a", "b", "b", "a", "a", "b"]


def test_a_ratio_compares_totals_and_its_quartiles_come_from_the_rounds() -> None:
    race = run_race("r", [runner("a", [100, 300, 200]), runner("b", [400, 400, 400])], rounds=3, seconds=1)
    assert race.ratio("b", "a") == pytest.approx(2)
    entry = race.entries[1]
    assert (entry.low, entry.high) == pytest.approx(((4 / 3 + 2) / 2, (2 + 4) / 2))


def test_a_race_that_shows_time_divides_times() -> None:
    race = run_race("r", [runner("a", [100]), runner("b", [400])], rounds=1, seconds=1, shows="time")
    assert race.ratio("b", "a") == pytest.approx(0.25)
    assert race.entries[1].ratio == pytest.approx(0.25)


def test_the_fastest_of_each_name_counts() -> None:
    contestants = [runner("a", [10], threads=1), runner("a", [20], threads=2), runner("b", [60]), runner("b", [30])]
    race = run_race("r", contestants, rounds=1, seconds=1)
    assert [entry.best for entry in race.entries] == [False, True, True, False]
    assert race.ratio("b", "a") == pytest.approx(3)
    assert race.entries[0].ratio == pytest.approx(0.5)


def test_phases_are_shares_of_the_time() -> None:
    race = run_race("r", [runner("a", [1, 1])], rounds=2, seconds=1)
    assert race.entries[0].phases == {"learning": pytest.approx(0.25)}


@pytest.mark.parametrize("when", ["opened", "measured"])
def test_a_contestant_that_fails_gets_the_reason_and_the_others_continue(when: str) -> None:
    contestants = [runner("a", [10, 10]), broken("b", RuntimeError("out of memory"), when), runner("c", [20, 20])]
    race = run_race("r", contestants, rounds=2, seconds=1)
    assert race.entries[1].failed == "out of memory"
    assert race.ratio("b", "a") is None
    assert race.ratio("c", "a") == pytest.approx(2)
