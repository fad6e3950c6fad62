"""Installs each peer into a virtual environment of its own, separate from Engram's."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
import venv
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from bench.peers.catalogue import PEERS, PatchedSource, Peer
from engram.bench.process import ProgramError

STAMP = "engram-installed.json"  # what was installed; if the recipe changes, the peer is installed again
# Prints the package index that pip is configured with.
INDEX = (
    "from pip._internal.configuration import Configuration as C; from pip._internal.models.index import PyPI; "
    "c = C(isolated=False); c.load(); print(dict(c.items()).get('global.index-url', PyPI.simple_url))"
)


def python_of(name: str, venvs: Path) -> Path:
    """The interpreter of a peer; raises `ProgramError` if it is not installed."""
    module = PEERS[name].module
    if not PEERS[name].packages or (module and find_spec(module)):
        return Path(sys.executable)
    folder = venvs.expanduser() / name
    if not _is_installed(folder, PEERS[name]):
        raise ProgramError("not installed: make bench ARGS='peers --install'")
    return folder / "bin" / "python"


def install(names: Sequence[str], venvs: Path, progress: Callable[[str], None]) -> dict[str, str]:
    """Install the peers that are missing; returns the errors of those that failed, by name."""
    failures = {}
    for name in names:
        peer, folder = PEERS[name], venvs.expanduser() / name
        if peer.packages and not _is_installed(folder, peer):
            try:
                _install(peer, folder, progress)
            except (ProgramError, OSError) as error:
                failures[name] = f"could not be installed: {error}"
    return failures


def _install(peer: Peer, folder: Path, progress: Callable[[str], None]) -> None:
    progress(f"{peer.title}: creating {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    venv.create(folder, with_pip=True, clear=False)
    first, *rest = peer.packages
    steps = [first, *([("source",)] if peer.source else []), *rest]
    for packages in steps:
        progress(f"{peer.title}: installing {', '.join(packages)}")
        if packages == ("source",):
            assert peer.source is not None
            _install_source(peer.source, folder, peer.environment)
        else:
            _pip(folder, packages, peer.environment)
    (folder / STAMP).write_text(_recipe(peer), encoding="utf-8")


def _install_source(source: PatchedSource, venv_folder: Path, environment: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = _fetch(source, _package_index(venv_folder), Path(directory))
        path = folder / source.file
        text = path.read_text(encoding="utf-8")
        if source.old not in text:
            raise ProgramError(f"{source.package} {source.version}: {source.file} does not contain the text to patch")
        path.write_text(text.replace(source.old, source.new), encoding="utf-8")
        _pip(venv_folder, ["--no-build-isolation", "--no-deps", str(folder)], environment)


def _package_index(folder: Path) -> str:
    command = [str(folder / "bin" / "python"), "-c", INDEX]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ProgramError(f"cannot find the package index of pip: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip().rstrip("/") + "/"


def _fetch(source: PatchedSource, index: str, directory: Path) -> Path:
    """Download and unpack a source distribution. (`pip download` would build it first.)"""
    page, name = f"{index}{source.package}/", f"{source.package}-{source.version}.tar.gz"
    try:
        with urllib.request.urlopen(page, timeout=60) as response:
            links = re.findall(r'href="([^"]+)"', response.read().decode())
        url = next((link for link in links if link.partition("#")[0].endswith(f"/{name}")), None)
        if url is None:
            raise ProgramError(f"{page} has no {name}")
        link, _, checksum = urllib.parse.urljoin(page, url).partition("#sha256=")
        with urllib.request.urlopen(link, timeout=60) as response:
            content = response.read()
    except OSError as error:
        raise ProgramError(f"{name} could not be downloaded: {error}") from None
    if checksum and hashlib.sha256(content).hexdigest() != checksum:
        raise ProgramError(f"{name} does not match the checksum of {page}")
    with tarfile.open(fileobj=io.BytesIO(content)) as file:
        file.extractall(directory, filter="data")
    return next(path for path in directory.iterdir() if path.is_dir())


def _pip(folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        raise ProgramError(lines[-1] if lines else f"pip exited with {done.returncode}")


def _is_installed(folder: Path, peer: Peer) -> bool:
    path = folder / STAMP
    return path.exists() and path.read_text(encoding="utf-8") == _recipe(peer)


def _recipe(peer: Peer) -> str:
    return json.dumps({"packages": peer.packages, "source": vars(peer.source) if peer.source else None}, indent=1)
