"""The kernels are found or built where possible; elsewhere a warning is logged once, and PyTorch computes the same."""

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engram.agent.recurrent.lstm import LSTM
from engram.native import build, library
from engram.native.build import compile_library, fingerprint

needs_kernels = pytest.mark.skipif(library.kernels() is None, reason="no compiler, or kernels switched off")


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A fresh process with an empty cache and a package without built kernels."""
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


@pytest.mark.usefixtures("fresh_cache", "_no_compiler")
def test_without_a_compiler_pytorch_takes_over_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    core = LSTM(3, 4)
    with caplog.at_level(logging.WARNING):
        outputs = [
            core(torch.ones(2, 1, 3), core.initial_memory(1), torch.zeros(2, 1, dtype=torch.bool))[0] for _ in range(3)
        ]
    assert library.kernels() is None
    assert outputs[0].isfinite().all()
    (record,) = caplog.records
    assert "no C compiler found" in record.getMessage()


@needs_kernels
def test_kernels_are_built_once_and_then_cached(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FLAGS", [flag if flag != "-O3" else "-O0" for flag in build.FLAGS])  # builds faster
    assert library.kernels() is not None
    (built,) = fresh_cache.iterdir()
    assert fingerprint() in built.name
    library._library.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert library.kernels() is not None


@needs_kernels
def test_a_library_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = library.kernels()
    assert loaded is not None
    assert library._open(Path(loaded._name)) is not None
    monkeypatch.setattr(library, "fingerprint", lambda: "of other sources")
    assert library._open(Path(loaded._name)) is None
    (tmp_path / "broken.so").write_text("no library")
    assert library._open(tmp_path / "broken.so") is None


def test_an_unwritable_path_is_reported_without_an_exception(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert compile_library(tmp_path / "file" / "kernels.so") is not None


@pytest.mark.parametrize("setting", ["0", "off"])
@pytest.mark.usefixtures("fresh_cache")
def test_kernels_can_be_switched_off(
    setting: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(library.SETTING, setting)
    assert library.kernels() is None
    assert library.instruction_sets() == []
    assert not caplog.records


@needs_kernels
def test_an_instruction_set_can_be_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest = library.instruction_sets()[0]
    for setting, selected in (("plain", "plain"), ("", fastest)):
        monkeypatch.setenv(library.SETTING, setting)
        library._library.cache_clear()
        loaded = library.kernels()
        assert loaded is not None
        assert loaded.engram_instruction_set().decode() == selected
        assert library.instruction_sets()[0] == fastest
        assert loaded.engram_instruction_set().decode() == selected  # listing them changes nothing
    library._library.cache_clear()


@needs_kernels
def test_threads_are_those_of_torch() -> None:
    """Two OpenMP runtimes would keep twice as many threads, which compete for cores."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("only Linux lists loaded libraries")
    assert isinstance(library.kernels(), ctypes.CDLL)
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    assert len(loaded) == 1, loaded
