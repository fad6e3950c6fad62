"""The trace and the profile of a run."""

import json

import torch
from support.running import metrics, run
from tensordict import TensorDict

from engram.training.trace import Trace, describe


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_field_is_described_by_its_type_shape_and_size() -> None:
    assert describe(torch.full((2, 3), 2.0)) == "float32 [2, 3] rms 2"
    assert describe(torch.zeros(4, dtype=torch.uint8)) == "uint8 [4]"


def test_each_stage_is_written_a_limited_number_of_times_with_nested_fields(tmp_path) -> None:
    trace = Trace(tmp_path / "trace.jsonl", 2)
    fields = TensorDict({"a": torch.ones(3), "memory": TensorDict({"lstm": torch.ones(3, 1)}, [3])}, [3])
    for _ in range(5):
        trace("one", fields, more=torch.zeros(1, dtype=torch.bool))
    trace("two", {"b": torch.ones(1)})
    written = lines(tmp_path / "trace.jsonl")
    assert [(line["stage"], line["number"]) for line in written] == [("one", 0), ("one", 1), ("two", 0)]
    assert written[0]["fields"] == {"a": "float32 [3] rms 1", "memory.lstm": "float32 [3, 1] rms 1", "more": "bool [1]"}


def test_a_trace_covers_all_stages_and_does_not_change_the_run(tmp_path) -> None:
    run(tmp_path, name="plain", epochs=2)
    run(tmp_path, "trainer.trace=3", name="traced", epochs=2)
    assert not (tmp_path / "plain" / "trace.jsonl").exists()
    assert metrics(tmp_path, "plain") == metrics(tmp_path, "traced")
    stages = {"rollout": [], "experience": [], "minibatch": [], "replay": []}
    for line in lines(tmp_path / "traced" / "trace.jsonl"):
        stages[line["stage"]].append(line["fields"])
    assert [len(fields) for fields in stages.values()] == [3, 3, 3, 3]
    first = {stage: fields[0] for stage, fields in stages.items()}
    assert first["rollout"]["env_obs"].startswith("float32 [6, 6]")
    assert first["rollout"]["memory.lstm.memory"].startswith("float32 [6, 1, 16] rms 0.")
    assert first["experience"]["dones"] == "bool [12, 8]"
    assert first["minibatch"]["memory.lstm"].startswith("float32 [6, 1, 16]")
    assert first["minibatch"]["advantages"].startswith("float32 [6, 8]")
    assert first["replay"]["full_log_probs"].startswith("float32 [6, 8, 4]")


def test_a_profile_has_a_table_and_a_trace_of_one_epoch(tmp_path) -> None:
    run(tmp_path, "trainer.profile=true", epochs=3)
    assert "engram::lstm_operator" in (tmp_path / "x" / "profile.txt").read_text()
    assert (tmp_path / "x" / "profile.txt").read_text().startswith("Epoch 2,")
    assert json.loads((tmp_path / "x" / "profile.json").read_text())["traceEvents"]


def test_a_run_too_short_for_a_profile_logs_a_warning(tmp_path) -> None:
    run(tmp_path, "trainer.profile=true", epochs=1)
    assert not (tmp_path / "x" / "profile.txt").exists()
    assert "less than two epochs" in (tmp_path / "x" / "log.txt").read_text()
