"""Worlds from mettagrid configuration files, and errors in such files."""

import json

import numpy as np
import pytest
import yaml

from engram.env.block import Buffers
from engram.env.mettagrid.adapter import block, spec
from engram.env.mettagrid.worlds import world
from engram.env.settings import MettagridFile, Navigation, Small, TMaze
from engram.settings import UserError

RANDOM_MAP = "mettagrid.map_builder.random_map.RandomMapBuilder.Config"


def write(path, data):
    path.write_text(json.dumps(data) if path.suffix == ".json" else yaml.safe_dump(data, sort_keys=False))
    return MettagridFile(path=str(path))


def small(**changes):
    """The small world as plain data, with values replaced by dotted path."""
    data = json.loads(world(Small()).model_dump_json())
    for key, value in changes.items():
        *parents, last = key.split("__")
        inner = data["game"]
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return data


@pytest.mark.parametrize("name", ["world.json", "world.yaml", "world.yml"])
@pytest.mark.parametrize("settings", [Small(), TMaze(), Navigation()])
def test_a_world_written_to_a_file_is_the_same_world(tmp_path, name, settings):
    file = write(tmp_path / name, json.loads(world(settings).model_dump_json()))
    assert spec(file).features == spec(settings).features
    assert play(file) == play(settings)


def play(settings):
    description = spec(settings)
    buffers = Buffers.allocate(description, 2 * description.agents)
    made = block(settings, range(2), 0, buffers)
    made.reset()
    seen = []
    actions = np.random.default_rng(0).integers(5, size=(30, len(buffers.actions)))
    for buffers.actions[:] in actions:
        made.step()
        seen.append(buffers.observations.tobytes() + buffers.rewards.tobytes())
    return seen


def test_a_file_may_rely_on_defaults(tmp_path):
    data = {"game": {"num_agents": 2, "map_builder": {"type": RANDOM_MAP, "agents": 2}}}
    description = spec(write(tmp_path / "world.yaml", data))
    assert description.agents == 2
    assert description.action_names == ("noop", "move_north", "move_south", "move_west", "move_east")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"obs__width": 10}, r"game\.obs\.width: 10 cannot be centred"),
        ({"obs__height": 17}, r"game\.obs\.height: 17 cannot be centred"),
        ({"obs__token_dim": 4}, r"game\.obs\.token_dim"),
        ({"obs__num_tokens": 0}, r"game\.obs\.num_tokens: must be 1 or more"),
        ({"obs__num_tokens": 9}, r"game\.obs\.num_tokens: 9 is too few.* use \d+"),
        ({"obs__token_value_base": 1}, r"game\.obs\.token_value_base"),
        ({"num_agents": 0}, r"game\.num_agents: .*greater than or equal to 1"),
        ({"agents": [{}, {}]}, r"game\.agents: 2 are given, but game\.num_agents is 1"),
        ({"actions__noop__enabled": False}, r"game\.actions\.noop\.enabled: must be true"),
        ({"actions__change_vibe__enabled": True}, r"game\.actions\.change_vibe\.enabled: must be false"),
        ({"talk__enabled": True}, r"game\.talk\.enabled: must be false"),
        (
            {"resource_names": [f"r{i}" for i in range(130)]},
            r"game: resources and tags need \d+ features",
        ),
        ({"resource_names": ["ore"]}, r"cannot be played: KeyError: 'battery'"),
        ({"map_builder__objects__wall": 96}, r"hold 100 things, but there are 101"),
        ({"map_builder__objects__wall": -1}, r"game\.map_builder\.objects\.wall: must be 0 or more"),
        ({"map_builder__objects__wizard": 1}, r"cannot be played: .*wizard"),
        ({"map_builder__agents": 0}, r"cannot be played: .*spawn points"),
        ({"map_builder__type": "os.system"}, r"game\.map_builder\.type: os\.system is not a class of mettagrid's"),
        ({"map_builder__type": "mettagrid.mapgen.scenes.nothing.Config"}, r"game\.map_builder: No module"),
    ],
)
def test_an_unplayable_world_is_refused_with_the_reason(tmp_path, changes, complaint):
    with pytest.raises(UserError, match=complaint):
        spec(write(tmp_path / "world.json", small(**changes)))


def test_all_problems_of_a_file_are_reported_at_once(tmp_path):
    with pytest.raises(UserError) as refused:
        spec(write(tmp_path / "world.yaml", small(max_steps="many", speed=3)))
    assert "game.max_steps: " in str(refused.value)
    assert "game.speed: " in str(refused.value)
    with pytest.raises(UserError) as refused:
        spec(write(tmp_path / "world.yaml", small(obs__width=4, actions__noop__enabled=False)))
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("world.json", "{", "not valid JSON: .*line 1"),
        ("world.yaml", "a: [", "is not valid YAML"),
        ("world.yaml", "!!python/object/apply:os.getcwd []", "is not valid YAML"),
        ("world.yaml", "", "must hold the fields of a MettaGridConfig, not NoneType"),
        ("world.json", "[]", "must hold the fields of a MettaGridConfig, not list"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_refused(tmp_path, name, text, complaint):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=complaint):
        spec(MettagridFile(path=str(tmp_path / name)))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        spec(MettagridFile(path=str(tmp_path / "absent.yaml")))
    with pytest.raises(UserError, match="not a regular file"):
        spec(MettagridFile(path=str(tmp_path)))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not text"):
        spec(MettagridFile(path=str(tmp_path / "bytes.yaml")))


def test_no_module_is_imported_because_a_file_names_it(tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"hostile\.Config is not a class"):
        spec(write(tmp_path / "world.json", small(map_builder__type="hostile.Config")))


def test_no_module_is_imported_because_a_scene_reads_a_file_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "scene.yaml").write_text("type: hostile.Config\n")
    for scene, key in (("ascii.Ascii", "uri"), ("yaml.YamlScene", "file")):
        instance = {"type": f"mettagrid.mapgen.scenes.{scene}.Config", key: str(tmp_path / "scene.yaml")}
        builder = {"type": "mettagrid.mapgen.mapgen.MapGen.Config", "instance": instance, "width": 9, "height": 9}
        with pytest.raises(UserError, match="scenes from other files are not supported"):
            spec(write(tmp_path / "world.json", small(map_builder=builder)))


@pytest.mark.parametrize(
    "change",
    [
        {"num_agents": 10**9},
        {"num_agents": 10**4000},
        {"map_builder__width": 10**9},
        {"map_builder__width": 1000, "map_builder__height": 1000},
        {"map_builder__objects": {"wall": 10**9}},
        {"obs__num_tokens": 10**9},
    ],
)
def test_worlds_that_no_machine_could_hold_are_refused_before_they_are_built(tmp_path, change):
    with pytest.raises(UserError, match="is too large"):
        spec(write(tmp_path / "world.json", small(**change)))


def test_a_world_nested_too_deeply_is_refused(tmp_path):
    for text in ('{"a":' * 900 + "1" + "}" * 900, "[" * 100_000):
        (tmp_path / "world.json").write_text(text)
        with pytest.raises(UserError, match="nested"):
            spec(MettagridFile(path=str(tmp_path / "world.json")))


def test_a_field_with_several_forms_is_one_line(tmp_path):
    with pytest.raises(UserError) as caught:
        spec(write(tmp_path / "world.json", small(agent__rewards={"ore": {"reward": {"nme": "ore.gained"}}})))
    _, line = str(caught.value).splitlines()
    assert line.startswith("  game.agent.rewards.ore.reward: does not have the fields of InventoryValue or StatValue")
