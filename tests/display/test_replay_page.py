"""The replay page, in a real browser."""

import base64
import json
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import browser, remembering

from engram.agent.metta_agent import MettaAgent
from engram.agent.policies.fast import Fast
from engram.analysis.influence import influence
from engram.analysis.memory_step import unit_names
from engram.analysis.recording import record
from engram.display.page import pack, page
from engram.display.replay_page import RunFacts, png, replay_page, shrink, unit_order
from engram.env.registry import make_spec
from engram.env.settings import Gym, Navigation, Recall

FACTS = RunFacts(run="</script><b>odd", policy="fast", epoch=3, steps=4096, memory=True)


def written(directory, env, agent=None, agent_names=(), change=lambda recording: recording, **settings):
    spec = make_spec(env)
    agent = agent or MettaAgent(spec, Fast(spec, hidden_size=8)).eval()
    recording = change(record(agent, env, **settings))
    recording = replace(recording, spec=replace(recording.spec, agent_names=agent_names))
    file = directory / f"{env.kind}.html"
    file.write_text(replay_page(FACTS, recording, influence(agent, recording), unit_names(agent)), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    env, names = Navigation(agents=3, max_steps=20), ("scout", "<b>worker", "idler")
    return written(tmp_path_factory.mktemp("pages"), env, agent_names=names, episodes=2)


def test_keyboard_and_pointer_move_through_the_steps(grid):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    with browser.opened(grid) as shown:
        body = shown.find_element(By.TAG_NAME, "body")

        def where(*keys):
            for key in keys:
                body.send_keys(key)
            return re.match(r"Step (\d+) of 39", browser.text(shown, "where"))[1]

        assert where() == "0"
        assert where(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT) == "2"
        assert where(Keys.SHIFT + Keys.ARROW_RIGHT) == "12"
        assert where(Keys.END) == "39"
        assert "episode 2, its step 19" in browser.text(shown, "where")
        assert where(Keys.HOME, Keys.ARROW_LEFT) == "0"
        shown.find_element(By.ID, "forward").click()
        assert where() == "1"
        memory = shown.find_element(By.ID, "memory")
        shown.execute_script("arguments[0].scrollIntoView({block: 'center'})", memory)
        ActionChains(shown).move_to_element(memory).click().perform()
        assert 15 <= int(where()) <= 23
        assert "largest value" in browser.text(shown, "memory-text")


def test_playing_goes_on_by_itself_and_stops_at_the_end(grid):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    with browser.opened(grid) as shown:
        body = shown.find_element(By.TAG_NAME, "body")
        body.send_keys("+++ ")
        assert browser.text(shown, "play") == "⏸ Pause"
        waiting = WebDriverWait(shown, browser.WAIT_SECONDS)
        waiting.until(lambda shown: browser.text(shown, "where").startswith("Step 39 "))
        waiting.until(lambda shown: browser.text(shown, "play") == "▶ Play")
        body.send_keys(Keys.HOME, " ", " ")
        assert browser.text(shown, "play") == "▶ Play"


def test_another_agent_has_another_memory(grid):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    picture = "return document.getElementById('memory').toDataURL()"
    with browser.opened(grid) as shown:
        before = shown.execute_script(picture)
        shown.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_DOWN)
        assert shown.execute_script("return document.getElementById('agent').value") == "1"
        assert shown.execute_script(picture) != before
        assert "<b>worker" in browser.text(shown, "verdict").lower()
        assert browser.text(shown, "agent") == "scout<b>workeridler"
        assert "move north" in browser.text(shown, "actions")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_the_page_fits_and_follows_the_theme(grid, width, dark):
    from selenium.webdriver.common.by import By

    theme = "return document.documentElement.dataset.theme"
    with browser.opened(grid, width, dark) as shown:
        assert browser.fits(shown)
        assert shown.execute_script(theme) == ("dark" if dark else "light")
        shown.find_element(By.ID, "theme").click()
        assert shown.execute_script(theme) == ("light" if dark else "dark")


PARTS = Gym(id="house:House-v0", max_steps=8)  # a camera, symbols, vectors and text


@pytest.mark.parametrize("env", [Recall(delay=2), Gym(id="CartPole-v1"), Gym(id="Pendulum-v1", max_steps=30), PARTS])
def test_every_kind_of_world_is_shown(tmp_path, monkeypatch, env):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "env" / "fakes"))
    with browser.opened(written(tmp_path, env), 390) as shown:
        shown.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_RIGHT)
        assert browser.fits(shown)
        size = "const box = document.querySelector('#world').getBoundingClientRect();"
        assert shown.execute_script(f"{size} return box.width > 200 && box.height > 20")
        assert shown.execute_script("return document.querySelectorAll('#actions .action').length") >= 1
        assert ("camera: " in browser.text(shown, "world")) == (env is PARTS)


@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_is_cut_off(tmp_path, width):
    def with_long_figures(recording):
        values = np.linspace(-12345.6, 12345.6, recording.steps)[:, None].astype(np.float32)
        entropies = np.linspace(3.7e-5, 0.7, recording.steps)[:, None].astype(np.float32)
        return replace(recording, values=values, entropies=entropies, rewards=-0.001234 + 0 * values)

    with browser.opened(written(tmp_path, Recall(delay=9), change=with_long_figures, episodes=2), width) as shown:
        assert browser.cut_labels(shown) == []


def test_a_count_of_items_never_hides_the_number_of_an_agent(grid):
    draw = """
        const texts = [], context = { beginPath() {}, arc() {}, fill() {}, fillText: (text) => texts.push(text) };
        for (const cell of [14, 40]) drawCount(context, 0, 0, cell, cell);
        return texts;
    """
    with browser.opened(grid) as shown:
        assert shown.execute_script(draw) == ["40"]  # a small cell has room for a dot only


def test_an_agent_that_remembers_is_told_from_one_that_does_not(tmp_path):
    from selenium.webdriver.common.by import By

    with browser.opened(written(tmp_path, remembering.ENV, remembering.remembering(), episodes=2)) as shown:
        assert browser.text(shown, "verdict").startswith("Yes. This agent remembers at least 5 steps")
        moment = shown.find_elements(By.CSS_SELECTOR, "#moments button")[0]
        assert "← 0 (5 back): 67%" in moment.text or "← 6 (5 back): 67%" in moment.text
        moment.click()
        assert "5 steps before: without that it would change by 67%" in browser.text(shown, "past-text")
    with browser.opened(written(tmp_path, remembering.ENV, episodes=2)) as shown:
        assert browser.text(shown, "verdict").startswith("Hardly.")
        assert shown.find_elements(By.CSS_SELECTOR, "#moments button") == []


def test_bounds_of_an_axis_differ_and_no_change_is_not_more_than_nothing(tmp_path):
    spec = make_spec(remembering.ENV)
    silent = MettaAgent(spec, Fast(spec, hidden_size=8)).eval()
    for parameter in silent.parameters():
        parameter.data.mul_(0.01)  # the past hardly changes anything
    with browser.opened(written(tmp_path, remembering.ENV, agent=silent, episodes=1)) as shown:
        assert browser.text(shown, "verdict").endswith("would change no action of this agent by even 1%.")
        assert shown.execute_script("return bounds(1.60943, 1.60912)") == ["1.6094", "1.6091"]
        assert shown.execute_script("return bounds(1, -0.1)") == ["1.00", "-0.10"]


def test_actions_that_are_not_listed_are_counted(tmp_path):
    with browser.opened(written(tmp_path, Recall(cues=15, delay=2), episodes=1)) as shown:
        assert browser.text(shown, "actions").endswith("and 3 more")


def test_names_cannot_run_as_code(grid):
    with browser.opened(grid) as shown:
        assert browser.text(shown, "title").startswith("</script><b>odd on navigation")


def test_the_page_loads_nothing():
    html = page("replay.html", {}, {})
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "@import" not in html


def test_arrays_are_packed_as_they_are():
    arrays = {"bytes": np.arange(5, dtype=np.uint8), "floats": np.array([[1.5, -2.0]], np.float32)}
    layout, packed = pack(arrays)
    content = zlib.decompress(base64.b64decode(packed))
    for entry in json.loads(json.dumps(layout)):
        expected = arrays[entry["name"]]
        count = int(np.prod(entry["shape"]))
        found = np.frombuffer(content, entry["dtype"], count, entry["offset"]).reshape(entry["shape"])
        np.testing.assert_array_equal(found, expected)
        assert entry["offset"] % 8 == 0


def test_a_png_has_the_pixels_of_the_picture():
    picture = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    content = png(picture)
    assert struct.unpack(">II", content[16:24]) == (6, 4)
    data = content.index(b"IDAT")
    (length,) = struct.unpack(">I", content[data - 4 : data])
    lines = np.frombuffer(zlib.decompress(content[data + 4 : data + 4 + length]), np.uint8).reshape(4, 19)
    np.testing.assert_array_equal(lines[:, 1:].reshape(4, 6, 3), picture)


def test_a_picture_shrinks_by_averaging():
    picture = np.array([[[0, 0, 0], [100, 0, 0]], [[100, 0, 0], [200, 8, 0]]], np.uint8)
    np.testing.assert_array_equal(shrink(picture, 2), [[[100, 2, 0]]])


def test_units_that_behave_alike_are_neighbours():
    rng = np.random.default_rng(1)
    waves = rng.normal(size=(200, 3))
    kinds = rng.integers(0, 3, 30)
    memory = waves[:, kinds] + 0.05 * rng.normal(size=(200, 30))
    memory = np.concatenate([memory, np.zeros((200, 5))], axis=1)  # units that never change are not chosen
    order = unit_order(memory, 30)
    assert sorted(order) == list(range(30))
    changes = np.count_nonzero(np.diff(kinds[order]))
    assert changes == 2
