"""The state of a run, read from its directory."""

import json
import tracemalloc

from support import running

from engram.runs.state import read_run


def peak_of_reading(directory) -> int:
    tracemalloc.start()
    read_run(directory)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_the_state_of_a_long_run_takes_no_more_memory_than_that_of_a_short_one(tmp_path):
    running.run(tmp_path, epochs=1)
    before = peak_of_reading(tmp_path / "x")
    with (tmp_path / "x" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"steps": 10**6, "episode/return": 0.5}) + "\n")
        file.writelines(f'{{"x": {number}}}\n' for number in range(100_000))
        file.write('{"steps": 1000001}\n')
    assert peak_of_reading(tmp_path / "x") < before + 3 * 2**20
    found = read_run(tmp_path / "x")
    assert (found.steps, found.mean_return) == (1_000_001, 0.5)
