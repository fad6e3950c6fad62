"""The public names of `engram`."""

import doctest
import subprocess
import sys

import pytest

import engram

NAMES = [name for name in engram.__all__ if name != "__version__"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the run that the examples open."""
    folder = tmp_path_factory.mktemp("examples")
    engram.train("recall", total_timesteps=1024, run="first", runs_dir=folder / "runs", progress=False)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example_that_works(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    public = getattr(engram, name)
    module = sys.modules[public.__module__]
    (example,) = doctest.DocTestFinder(recurse=False).find(public, name, globs=vars(module) | {name: public})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_importing_engram_does_not_import_torch():
    code = "import sys, engram; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = engram.nothing


def test_dir_lists_every_public_name():
    assert {*engram.__all__} <= {*dir(engram)}
