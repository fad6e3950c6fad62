"""The plain display: lines for grep, every few seconds, that never end a run."""

import io

import pytest

from engram.display.plain import PlainDisplay


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stream():
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def lines_of(stream) -> list[str]:
    return stream.buffer.getvalue().decode().splitlines()


def test_a_line_alternates_names_and_values(stream, plan, record):
    with PlainDisplay(stream) as display:
        display.start(plan)
        display.update(record(12))
    line = lines_of(stream)[-1]
    assert line.startswith("epoch 12 steps 49,152/1,000,000 return 0.31 length 12.30 steps/s 8,192 left 1:56 ")
    words = line.split(" ")
    figures = dict(zip(words[::2], words[1::2], strict=True))
    assert figures["environment"] == "40%"
    assert figures["replay_error"] == "2.4e-07"
    assert figures["policy"] == "-0.0123"
    assert "\x1b" not in line


def test_the_first_line_says_what_is_trained(stream, plan):
    PlainDisplay(stream).start(plan)
    (line,) = lines_of(stream)
    assert "run first: policy fast (1,234,567 parameters) on tmaze, device cpu, 64 environments of 1 agent" in line


def test_lines_come_every_few_seconds_and_for_the_first_and_last_epoch(stream, plan, record, result):
    clock = Clock()
    display = PlainDisplay(stream, clock=clock)
    display.start(plan)
    for epoch in range(1, 246):
        display.update(record(epoch))
        clock.now += 0.125
    display.finish(result())
    epochs = [int(line.split(" ")[1]) for line in lines_of(stream) if line.startswith("epoch")]
    assert epochs == [1, 41, 81, 121, 161, 201, 241, 245]


def test_a_stopped_run_still_prints_its_last_epoch(stream, plan, record):
    def train() -> None:
        with PlainDisplay(stream, clock=Clock()) as display:
            display.start(plan)
            for epoch in (1, 2, 3):
                display.update(record(epoch))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert lines_of(stream)[-1].startswith("epoch 3 ")


def test_missing_metrics_are_dashes(stream, plan):
    display = PlainDisplay(stream)
    display.start(plan)
    display.update({"epoch": 1, "steps": 4096, "return": None})
    assert lines_of(stream)[-1].startswith("epoch 1 steps 4,096/1,000,000 return - length - steps/s - left - ")


def test_characters_that_the_stream_cannot_encode_are_escaped(plan):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    PlainDisplay(stream).message("the café is out of memory")
    assert lines_of(stream) == ["the caf\\xe9 is out of memory"]


def test_the_end_has_the_verdict_and_the_next_commands(stream, plan, record, result):
    with PlainDisplay(stream, next_steps=lambda steps: [f"./tools/train.py after={steps}"]) as display:
        display.start(plan)
        display.update(record(245))
        display.finish(result())
    assert lines_of(stream)[-6:] == [
        "first: 1,003,520 steps in 1:34, 10,676 steps/s.",
        "Return 0.93: above what any policy without memory can reach (0.45). The best possible is 1.00.",
        "Checkpoint: runs/first/checkpoints/epoch_000245",
        "",
        "Next:",
        "  ./tools/train.py after=1003520",
    ]
