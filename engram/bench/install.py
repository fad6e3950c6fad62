"""Virtual environments of the peers: one each, made when asked for, never Engram's own."""

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
from pathlib import Path

from engram.bench.catalogue import PEERS, Peer, Source
from engram.bench.process import PeerError

DONE = "engram-installed.json"  # what was installed; a recipe that has changed is followed again
# Where pip of that environment gets packages: as it is configured, else its own default.
INDEX = (
    "from pip._internal.configuration import Configuration as C; from pip._internal.models.index import PyPI; "
    "c = C(isolated=False); c.load(); print(dict(c.items()).get('global.index-url', PyPI.simple_url))"
)


def python_of(name: str, venvs: Path) -> Path:
    """The interpreter that runs a peer; raises `PeerError` if it is not installed."""
    if not PEERS[name].packages:
        return Path(sys.executable)
    place = venvs.expanduser() / name
    if not _is_done(place, PEERS[name]):
        raise PeerError("not installed: engram bench peers --install")
    return place / "bin" / "python"


def install(names: Sequence[str], venvs: Path, progress: Callable[[str], None]) -> dict[str, str]:
    """Install those that are not; the reasons of those that could not be, by name."""
    reasons = {}
    for name in names:
        peer, place = PEERS[name], venvs.expanduser() / name
        if peer.packages and not _is_done(place, peer):
            try:
                _install(peer, place, progress)
            except (PeerError, OSError) as error:
                reasons[name] = f"could not be installed: {error}"
    return reasons


def _install(peer: Peer, place: Path, progress: Callable[[str], None]) -> None:
    progress(f"{peer.title}: making {place}")
    place.parent.mkdir(parents=True, exist_ok=True)
    venv.create(place, with_pip=True, clear=False)
    first, *rest = peer.packages
    steps = [first, *([("source",)] if peer.source else []), *rest]
    for packages in steps:
        progress(f"{peer.title}: installing {', '.join(packages)}")
        if packages == ("source",):
            assert peer.source is not None
            _install_source(peer.source, place, peer.environment)
        else:
            _pip(place, packages, peer.environment)
    (place / DONE).write_text(_recipe(peer), encoding="utf-8")


def _install_source(source: Source, place: Path, environment: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = _fetch(source, _index(place), Path(directory))
        path = folder / source.file
        text = path.read_text(encoding="utf-8")
        if source.old not in text:
            raise PeerError(f"{source.package} {source.version}: {source.file} is not as it was when this was written")
        path.write_text(text.replace(source.old, source.new), encoding="utf-8")
        _pip(place, ["--no-build-isolation", "--no-deps", str(folder)], environment)


def _index(place: Path) -> str:
    command = [str(place / "bin" / "python"), "-c", INDEX]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"pip does not say where it gets packages: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip().rstrip("/") + "/"


def _fetch(source: Source, index: str, directory: Path) -> Path:
    """The unpacked source distribution. Not by `pip download`: that builds first."""
    page, name = f"{index}{source.package}/", f"{source.package}-{source.version}.tar.gz"
    try:
        with urllib.request.urlopen(page, timeout=60) as answer:
            links = re.findall(r'href="([^"]+)"', answer.read().decode())
        url = next((link for link in links if link.partition("#")[0].endswith(f"/{name}")), None)
        if url is None:
            raise PeerError(f"{page} has no {name}")
        place, _, check = urllib.parse.urljoin(page, url).partition("#sha256=")
        with urllib.request.urlopen(place, timeout=60) as answer:
            content = answer.read()
    except OSError as error:
        raise PeerError(f"{name} could not be fetched: {error}") from None
    if check and hashlib.sha256(content).hexdigest() != check:
        raise PeerError(f"{name} is not what {page} says it is")
    with tarfile.open(fileobj=io.BytesIO(content)) as file:
        file.extractall(directory, filter="data")
    return next(path for path in directory.iterdir() if path.is_dir())


def _pip(place: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    command = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        raise PeerError(lines[-1] if lines else f"pip ended with {done.returncode}")


def _is_done(place: Path, peer: Peer) -> bool:
    path = place / DONE
    return path.exists() and path.read_text(encoding="utf-8") == _recipe(peer)


def _recipe(peer: Peer) -> str:
    return json.dumps({"packages": peer.packages, "source": vars(peer.source) if peer.source else None}, indent=1)
