"""Traces dtype, shape and RMS of every field, from the environments to the gradient, for the first few steps."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tensordict import TensorDictBase
from torch import Tensor

Fields = Mapping[str, Tensor] | TensorDictBase

log = logging.getLogger("engram")


class Trace:
    """Writes a line of JSON for each of the first `steps` calls of each stage."""

    def __init__(self, path: Path, steps: int) -> None:
        self.path, self.steps = path, steps
        self._written: Counter[str] = Counter()
        if steps:
            path.write_text("", encoding="utf-8")

    def __call__(self, stage: str, fields: Fields, **more: Fields | Tensor) -> None:
        if self._written[stage] >= self.steps:
            return
        described = {name: describe(tensor) for name, tensor in _leaves({**dict(fields.items()), **more})}
        line = {"stage": stage, "number": self._written[stage], "fields": described}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            log.warning("trainer.trace: %s cannot be written (%s): nothing more is traced", self.path, error.strerror)
            self.steps = 0
        self._written[stage] += 1


def describe(tensor: Tensor) -> str:
    """`float32 [6, 8] rms 0.25`; only floating-point tensors have an RMS."""
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    if not tensor.is_floating_point():
        return kind
    return f"{kind} rms {tensor.detach().float().square().mean().sqrt().item():.4g}"


def _leaves(tree: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, Tensor]]:
    for name, value in tree.items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, Mapping | TensorDictBase):
            yield from _leaves(dict(value.items()), f"{prefix}{name}.")
