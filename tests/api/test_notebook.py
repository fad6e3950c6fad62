"""Training in a notebook."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.running import run

from engram.display.notebook import NotebookDisplay

ROOT = Path(__file__).resolve().parent.parent.parent


class Notebook:
    """Stands in for IPython's display: remembers what an output shows."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []

    def display(self, content, raw, display_id):
        assert raw
        assert display_id
        self.outputs.append(content)
        return SimpleNamespace(update=self.update)

    def update(self, content, raw):
        self.outputs[-1] = content


def test_one_output_is_updated_without_escape_codes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)  # Rich would draw outputs of its own
    notebook = Notebook()
    with NotebookDisplay(notebook.display) as display:
        display.message("a message")
        run(tmp_path, display=display)
    (shown,) = notebook.outputs
    assert "\x1b" not in shown["text/html"] + shown["text/plain"]
    assert "a message" in shown["text/plain"]
    assert "288 of 288 steps" in shown["text/plain"]
    assert "<pre" in shown["text/html"]
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_example_runs_as_a_new_user_would_run_it(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "examples" / "your_own.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if "engram.train(" in cell.source and cell.cell_type == "code"]
    assert [len(cell.outputs) for cell in cells] == [1, 1]  # updated in place
    outputs = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert "\\u001b" not in outputs
    assert "steps/s" in outputs
    assert (tmp_path / "runs" / "light" / "checkpoints").is_dir()


def test_no_step_of_the_example_needs_more_than_five_lines_of_engram():
    cells = json.loads((ROOT / "examples" / "your_own.ipynb").read_text())["cells"]
    for cell in cells:
        lines = [line for line in cell["source"] if "engram." in line or "agent." in line]
        assert cell["cell_type"] != "code" or len(lines) <= 5
