"""`engram export`."""

import pytest
import torch
from support import running

from engram.cli.main import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    running.run(directory, "trainer.memory=off", name="forgetful", epochs=1)
    return directory


def test_a_run_becomes_a_program_of_torch(runs, capsys, tmp_path):
    path = tmp_path / "new" / "policy.pt2"
    assert main(["export", "run=forgetful", f"runs_dir={runs}", "--out", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"{path}: the policy's actions in all of 3,000 decisions of 1,000 steps" in said
    assert "inputs   observations [batch, 6] float32 · memory [batch, 16] float32 · starts [batch] bool" in said
    extra = {"engram": ""}
    outputs = torch.export.load(path, extra_files=extra).module()(
        {"observations": torch.zeros(7, 6)}, torch.ones(7, 16), torch.zeros(7, dtype=torch.bool)
    )
    assert outputs[1].shape == (7, 4)
    assert '"used": false' in extra["engram"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run=none"], "run: no run 'none'"),
        ([], "run: missing"),
        (["run=forgetful", "greedy=true"], "greedy: no such option"),
        (["run=forgetful", "--format", "tflite"], "invalid choice: 'tflite'"),
        (["run=forgetful", "--fromat", "onnx"], "did you mean --format?"),
        (["run=forgetful", "--format", "torch", "--out", "x.onnx"], "looks like --format onnx"),
    ],
)
def test_a_mistake_is_one_message(runs, capsys, words, message):
    assert main(["export", f"runs_dir={runs}", *words]) == 2
    assert message in capsys.readouterr().err
