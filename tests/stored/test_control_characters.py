"""Files of a stranger cannot command the terminal that shows them."""

import json

import pytest
from support import running

from engram.config.load import load_run
from engram.settings import UserError
from engram.stored.files import UnreadableError, parse_yaml
from engram.stored.metrics import read_metrics
from engram.stored.plan import read_plan
from engram.training.checkpoint.files import problem_of
from engram.training.checkpoint.loading import mismatches

ESCAPE = "\x1b[2K"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    running.run(directory, epochs=1)
    return directory / "x"


@pytest.mark.parametrize("text", [r'"\e[2K"', r'"a\rb"', r'"\x9b2K"', r'"\u202E"', r'{"\e": 1}'])
def test_yaml_with_control_characters_is_refused(text):
    with pytest.raises(UnreadableError, match="control characters"):
        parse_yaml(f"name: {text}", "settings.yaml")


def test_settings_that_name_code_cannot_hide_it(run):
    path = run / "settings.yaml"
    good = path.read_text()
    path.write_text(good.replace("name: fast", 'name: "evil.py:Evil\\e[2K\\e[1A"'))
    with pytest.raises(UserError) as refusal:
        load_run(run)
    path.write_text(good)
    assert "\x1b" not in str(refusal.value)
    assert "evil.py:Evil" in str(refusal.value)


def test_messages_for_users_hold_no_control_characters():
    assert str(UserError(f"a{ESCAPE}\n\tb\u202e")) == "a\ufffd[2K\n\tb\ufffd"


def test_messages_for_users_have_a_bounded_number_of_lines():
    lines = str(UserError("\n".join(f"line {number}" for number in range(10_000)))).splitlines()
    assert len(lines) <= 100
    assert (lines[0], lines[-2], lines[-1]) == ("line 0", f"… {10_000 - len(lines) + 1:,} more lines …", "line 9999")


def test_a_record_whose_names_hold_control_characters_is_left_out(tmp_path):
    records = [{"steps": 1}, {"steps": 2, ESCAPE: 3}, {"steps": 4}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    assert read_metrics(tmp_path) == [{"steps": 1}, {"steps": 4}]


def test_plan_and_state_with_control_characters_are_refused(run):
    path = run / "plan.json"
    good = path.read_text()
    assert read_plan(run) is not None
    path.write_text(json.dumps({**json.loads(good), "policy": ESCAPE}))
    assert read_plan(run) is None
    path.write_text(good)
    state = json.loads((run / "checkpoints" / "epoch_000001" / "state.json").read_text())
    assert problem_of(state) is None
    state["env_spec"]["name"] = ESCAPE
    assert problem_of(state) == "a name in it holds control characters"


def test_names_of_tensors_are_shown_without_control_characters():
    assert "\x1b" not in mismatches({ESCAPE: None}, {}, [])
