"""Several processes that train one policy: what they add up, what they agree on, and how they end together.

Each has environments of its own and the same weights. All that decides how training goes on is the same for all of
them, so that none waits for what another does not send.
"""

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engram.settings import UserError
from engram.training.launch import Place

log = logging.getLogger("engram")

GRACE = 3.0  # seconds in which the process that failed can say why, before the others say only that it is gone

Value = TypeVar("Value")
Sums = TypeVar("Sums", bound=tuple)


class PeerError(UserError):
    """Another process of the run is gone. Why, it has said itself, unless it was killed."""

    exit_code = 1


class World:
    """The processes of a run, as one of them sees them. Alone, everything is given back as it is, at no cost."""

    def __init__(self, place: Place | None = None, store: dist.Store | None = None, timeout: float = 0.0) -> None:
        self.place = place or Place()
        self.rank, self.size = self.place.rank, self.place.size
        self.main = self.rank == 0  # the one that writes, shows and evaluates
        self.timeout, self._store = timeout, store

    def sum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, dist.ReduceOp.MAX)

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter], others: Sums) -> Sums:
        """Sum the gradients over all processes where they are, and a named tuple of scalars too, all in one message."""
        if self.size == 1:
            return others
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        there = [value for value in others if value is not None]
        flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients] + [x.detach().view(1) for x in there]))
        *summed, sums = flat.split([*(gradient.numel() for gradient in gradients), len(there)])
        for gradient, new in zip(gradients, summed, strict=True):
            gradient.copy_(new.view_as(gradient))
        rest = iter(sums.unbind())
        totals: list[Any] = [None if value is None else next(rest) for value in others]
        return type(others)(*totals)

    def broadcast_weights(self, module: nn.Module) -> None:
        """Let every process have the weights of the first."""
        if self.size > 1:
            module.load_state_dict(self.broadcast({name: tensor.cpu() for name, tensor in module.state_dict().items()}))

    def broadcast(self, value: Value) -> Value:
        """The first process's value, for all."""
        if self.size == 1:
            return value
        box = [value if self.main else None]
        with self._answered():
            dist.broadcast_object_list(box, 0)
        return box[0]  # type: ignore[return-value]

    def scatter(self, values: Sequence[Value] | None) -> Value:
        """Each process its own of the first one's values, which has one for every process."""
        box: list[Any] = [None]
        if self.size == 1:
            assert values is not None
            return values[0]
        with self._answered():
            dist.scatter_object_list(box, list(values) if self.main and values is not None else None, 0)
        return box[0]

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes by rank for the first; nothing for the others."""
        if self.size == 1:
            return [value]
        boxes: list[Any] | None = [None] * self.size if self.main else None
        with self._answered():
            dist.gather_object(value, boxes, 0)
        return boxes or []

    def leave(self) -> None:
        """When all have come to the end: if one fails before, all do."""
        if self.size > 1:
            with self._answered():
                dist.barrier()
            dist.destroy_process_group()

    def speaks(self, error: BaseException) -> bool:
        """Whether this process is to say why the run ends. A thing is said once, by the first that knows it; those that
        only notice that others have gone are silent when one of those has said why."""
        if self._store is None:
            return True
        consequence = isinstance(error, PeerError | KeyboardInterrupt)
        with suppress(RuntimeError):  # the store may be gone with the process that kept it
            if not consequence:
                self._store.add("causes", 1)
            else:
                deadline = time.monotonic() + GRACE
                while time.monotonic() < deadline:
                    if self._store.add("causes", 0):
                        return False
                    time.sleep(0.1)
            # How far each has come when it is interrupted may differ, and is one thing to say all the same.
            what = "" if isinstance(error, KeyboardInterrupt) else str(error)
            text = hashlib.sha256(f"{type(error).__name__}: {what}".encode()).hexdigest()
            return self._store.add(text, 1) == 1
        return not consequence

    def _reduced(self, tensor: Tensor, operation: Any) -> Tensor:
        if self.size == 1:
            return tensor
        result = tensor.detach().clone()
        with self._answered():
            dist.all_reduce(result, operation)
        return result

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Everything that torch raises in here means the same: somebody is gone, or does not answer."""
        try:
            yield
        except RuntimeError as error:
            log.info("%s", error)
            raise PeerError(
                "another process of this run is gone, or did not answer within "
                f"{self.timeout:g} s (trainer.peer_timeout). The last checkpoint is still there"
            ) from error


ALONE = World()
