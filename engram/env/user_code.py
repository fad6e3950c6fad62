"""Finds the code that settings name: `file.py:NAME`, `package.module:NAME`, or an object of this program.

This is the only place where a name in settings becomes code.
"""

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from engram.env.errors import explained
from engram.nearest import suggestion
from engram.settings import UserError

_objects: dict[str, Any] = {}  # classes and functions that were given as objects, by their names in settings


def register(found: Any, name: str | None = None) -> str:
    """Give a class or function a name in settings, under which `find` returns this very object."""
    name = name or _name_of(found)
    _objects[name] = found
    return name


def find(name: str, option: str) -> Any:
    """The object of this name; naming a file runs it. `option` is the setting that names it, for messages."""
    if name in _objects:
        return _objects[name]
    location, _, path = name.rpartition(":")
    if not location or not path:
        raise UserError(f"{option}: '{name}' is not the name of code: write file.py:NAME or package.module:NAME")
    if location == "__main__" and not _has(sys.modules["__main__"], path):
        raise UserError(
            f"{option}: {path} was defined in a script or notebook and is not in this program: define it first and "
            f"give it again ({_keyword(option)}={path.rpartition('.')[2]})"
        )
    module = load_module(location, option)
    found: Any = module
    for part in path.split("."):
        if not _has(found, part):
            names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            hint = suggestion(path, names, otherwise=f"; it has {', '.join(names[:5]) or 'none'}")
            raise UserError(f"{option}: {location} has no {path}{hint}")
        found = getattr(found, part)
    return found


def load_module(location: str, option: str) -> ModuleType:
    """The module at `path/to/file.py`, or named `package.module`."""
    if location.endswith(".py"):
        return _from_file(Path(location), option)
    with explained(f"{option}: {location} could not be imported"):
        return importlib.import_module(location)


def pickled(name: str, option: str) -> bytes | None:
    """A registered object for another process; None if that process can find it by its name."""
    if name not in _objects:
        return None
    import cloudpickle  # type: ignore[import-untyped]  # comes with Gymnasium

    found = _objects[name]
    try:
        with _by_value(sys.modules.get(getattr(found, "__module__", None) or "")):
            return cloudpickle.dumps((name, found))
    except Exception as error:  # the user's objects may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"{option}: {name.rpartition(':')[2]} cannot be sent to worker processes ({reason}): "
            "step environments in this process (trainer.num_workers=0), or define it in its own file"
        ) from error


def unpickle(data: bytes) -> None:
    """Register an object that another process pickled."""
    name, found = pickle.loads(data)
    register(found, name)


def _name_of(found: Any) -> str:
    """`module:Class`; of a `functools.partial`, the name of its function."""
    while isinstance(found, functools.partial):
        found = found.func
    if not hasattr(found, "__qualname__"):  # an object with __call__
        found = type(found)
    return f"{found.__module__}:{found.__qualname__}"


@contextlib.contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    """Pickle the content of a module that another process could not import."""
    import cloudpickle

    if module is None or module.__name__ == "__main__" or _is_importable(module):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: ModuleType) -> bool:
    """Whether the import system finds this module by its name."""
    package = sys.modules.get(module.__name__.rpartition(".")[0])
    path = getattr(package, "__path__", None)
    found = importlib.machinery.PathFinder.find_spec(module.__name__, path)
    return found is not None and found.origin == getattr(module, "__file__", None)


def _from_file(path: Path, option: str) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise UserError(f"{option}: no such file: {path}")
    name = f"engram_user_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    with explained(f"{option}: {path} could not be loaded"):
        module_spec.loader.exec_module(module)
    return module


def _has(owner: Any, name: str) -> bool:
    first, _, rest = name.partition(".")
    found = vars(owner).get(first) if isinstance(owner, ModuleType | type) else None
    return found is not None and (not rest or _has(found, rest))


def _keyword(option: str) -> str:
    return {"py_agent": "policy", "hooks": "on_epoch"}.get(option, option)
