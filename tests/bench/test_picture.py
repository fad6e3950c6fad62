"""The picture of a result."""

import json
from xml.etree import ElementTree

import pytest

from engram.bench.picture import COLOURS, main, picture

SVG = "{http://www.w3.org/2000/svg}"


def entry(name: str, rate: float, best: bool = True) -> dict:
    return {"name": name, "rate": rate, "best": best, "phases": {"environment": 0.25, "learning": 0.5}}


RESULT = {
    "machine": {"cpu": "a <cpu>", "cores": 2, "torch": "2.13"},
    "date": "2026-05-01T12:00:00+00:00",
    "races": [
        {"name": "a & b", "baseline": "engram", "entries": [entry("slow", 500), entry("engram", 2000)]},
        {"name": "nobody", "baseline": "engram", "entries": [entry("engram", 0, best=False)]},
    ],
}


def test_bars_are_as_long_as_the_time_and_split_by_phase() -> None:
    root = ElementTree.fromstring(picture(RESULT))
    widths = {colour: [] for colour in COLOURS.values()}
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("fill") in widths and rect.get("height") == "22":
            widths[rect.get("fill")].append(float(rect.get("width")))
    fast, slow = (sum(lengths[i] for lengths in widths.values()) for i in (0, 1))
    assert slow / fast == pytest.approx(4, rel=0.01)
    assert widths[COLOURS["learning"]][1] == pytest.approx(slow / 2, rel=0.01)
    assert widths[COLOURS["other"]][1] == pytest.approx(slow / 4, rel=0.01)


def test_the_fastest_comes_first_and_the_machine_is_told() -> None:
    texts = [text.text for text in ElementTree.fromstring(picture(RESULT)).iter(f"{SVG}text")]
    assert texts.index("engram") < texts.index("slow")
    assert "nobody" not in texts
    assert any("a <cpu>, 2 cores" in text for text in texts)


def test_it_is_made_from_a_file(tmp_path) -> None:
    source, target = tmp_path / "result.json", tmp_path / "images" / "bars.svg"
    source.write_text(json.dumps(RESULT))
    assert main([str(source), str(target)]) == 0
    assert target.read_text().startswith("<svg")
    assert target.read_text().count("a &amp; b") == 1
    assert main([str(source), str(source), str(target)]) == 0
    assert target.read_text().count("a &amp; b") == 2
