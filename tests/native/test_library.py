"""The kernels are found or built where that is possible; elsewhere that is said once, and PyTorch computes the same."""

import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engram.agent.recurrent.lstm import LSTM
from engram.native import library
from engram.native.build import compile_library, fingerprint

needs_kernels = pytest.mark.skipif(library.kernels() is None, reason="there is no compiler, or they are switched off")


@pytest.fixture
def found_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As in a new process of a user who has an empty cache, and a package that came without kernels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(library.SETTING, raising=False)
    monkeypatch.setattr(library, "HERE", tmp_path)
    library._library.cache_clear()
    yield tmp_path / "engram"
    library._library.cache_clear()


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)


@pytest.mark.usefixtures("found_anew", "_no_compiler")
def test_without_a_compiler_pytorch_takes_over_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    core = LSTM(3, 4)
    with caplog.at_level(logging.WARNING):
        outputs = [core(torch.ones(2, 1, 3))[0] for _ in range(3)]
    assert library.kernels() is None
    assert outputs[0].isfinite().all()
    (record,) = caplog.records
    assert "there is no C compiler" in record.getMessage()


@needs_kernels
def test_they_are_built_once_and_then_taken_from_the_cache(found_anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.kernels() is not None
    (built,) = found_anew.iterdir()
    assert fingerprint() in built.name
    library._library.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert library.kernels() is not None


@needs_kernels
def test_a_library_of_other_sources_is_not_used(found_anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = found_anew / "stale.so"
    monkeypatch.setattr("engram.native.build.fingerprint", lambda: "of other sources")
    assert compile_library(stale) is None
    assert library._open(stale) is None
    (found_anew / "broken.so").write_text("no library")
    assert library._open(found_anew / "broken.so") is None


def test_a_place_that_cannot_be_written_is_a_problem_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert compile_library(tmp_path / "file" / "kernels.so") is not None


@pytest.mark.parametrize("setting", ["0", "off"])
@pytest.mark.usefixtures("found_anew")
def test_they_can_be_switched_off(
    setting: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(library.SETTING, setting)
    assert library.kernels() is None
    assert library.kinds() == []
    assert not caplog.records


@needs_kernels
def test_a_kind_of_processor_can_be_asked_for() -> None:
    code = "from engram.native import library; k = library.kernels(); print(k.engram_kind().decode())"
    environment = os.environ | {library.SETTING: "plain"}
    for before in ("", "library.kinds(); "):  # looking at what there is changes nothing
        words = [sys.executable, "-c", code.replace("k = ", before + "k = ")]
        answer = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == "plain"


@needs_kernels
def test_threads_are_those_of_torch() -> None:
    """Two runtimes would keep twice as many threads, which wait for each other's processors."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("only Linux says what a process has loaded")
    assert isinstance(library.kernels(), ctypes.CDLL)
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    assert len(loaded) == 1, loaded
