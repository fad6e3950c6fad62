"""The memory page, in a real browser."""

import pytest
from support import browser
from support.remembering import ENV, remembering

from engram.analysis.memory_report import memory_report
from engram.display.memory_page import MemoryFacts, is_remembered, memory_page, verdict

FACTS = MemoryFacts(
    run="<i>remembers", env="recall", policy="x", epoch=1, steps=0, bptt=4, greedy=False, seed=1, ceiling=1 / 3
)


@pytest.fixture(scope="module")
def report() -> dict:
    return memory_report(remembering(), ENV, 40).to_json()


@pytest.fixture(scope="module")
def written(report, tmp_path_factory):
    file = tmp_path_factory.mktemp("pages") / "memory.html"
    file.write_text(memory_page(FACTS, report), encoding="utf-8")
    return file


def test_the_verdict_tells_what_is_remembered_and_until_when(report):
    sentences = verdict(FACTS, report)
    assert sentences[0].startswith("The return needs memory: 1.00 with memory, 0.")
    assert any("memory horizon is about 5 steps" in sentence for sentence in sentences)
    assert any("first saw observation[0]” can be read from memory until step 5" in sentence for sentence in sentences)


def test_an_agent_without_memory_is_told_apart(report):
    forgetful = {
        **report,
        "returns": {**report["returns"], "normal": report["returns"]["erased"]},
        "horizon": {**report["horizon"], "strong": [0.01] * 5},
        "facts": [
            {**fact, "scores": [{"memory": 0.5, "observation": 0.5, "control": 0.5} for _ in fact["scores"]]}
            for fact in report["facts"]
        ],
    }
    sentences = verdict(FACTS, forgetful)
    assert sentences[0].startswith("The return does not measurably depend on memory")
    assert sentences[2].startswith("The memory horizon is short")
    assert sentences[3].startswith("Nothing of the first observation can be read from memory")


def test_facts_that_no_action_uses_are_told_from_memory_that_is_used(report):
    unused = {**report, "horizon": {**report["horizon"], "strong": [0.01] * 5}}
    assert verdict(FACTS, unused)[-1].endswith("but actions do not use it.")
    assert not verdict(FACTS, report)[-1].endswith("but actions do not use it.")


def test_a_probe_worse_than_none_makes_nothing_easier_to_read():
    assert not is_remembered({"memory": 0.36, "observation": -0.05, "control": -0.43})
    assert is_remembered({"memory": 0.6, "observation": -0.05, "control": -0.43})


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_fits_and_is_read_by_keyboard_and_pointer(written, width, dark):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    with browser.opened(written, width, dark) as shown:
        assert browser.fits(shown)
        assert browser.text(shown, "title") == "Memory of <i>remembers on recall"
        shown.find_element(By.ID, "horizon").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        assert browser.text(shown, "horizon-text").startswith("Memory erased before the last 2: mean change")
        facts = shown.find_elements(By.CSS_SELECTOR, "#facts button")
        assert [fact.get_attribute("aria-pressed") for fact in facts][:2] == ["true", "false"]
        shown.execute_script("arguments[0].scrollIntoView({block: 'center'})", facts[1])
        facts[1].click()
        assert facts[1].get_attribute("aria-pressed") == "true"
        assert browser.text(shown, "fact-name").startswith("first saw observation[1]: accuracy")
        curve = shown.find_element(By.ID, "fact")
        shown.execute_script("arguments[0].scrollIntoView({block: 'center'})", curve)
        ActionChains(shown).move_to_element(curve).perform()
        assert "memory 100%" in browser.text(shown, "fact-text")


def test_bptt_horizon_is_marked_between_the_places_around_it(written):
    with browser.opened(written) as shown:
        marks = "return [1, 3, 4, 9].map((value) => indexAmong([1, 2, 4], value))"
        assert shown.execute_script(marks) == [0, 1.5, 2, None]
