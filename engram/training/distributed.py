"""Distributed training: how ranks connect, exchange data and stop together.

Every rank has its own environments and the same weights. Decisions that change the course of training use values that
are equal on all ranks, so that no rank waits for a message that another never sends.
"""

import hashlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engram.env.errors import EnvError
from engram.settings import UserError
from engram.training.launch import RankInfo
from engram.training.watchdog import TrainingStoppedError

log = logging.getLogger("engram")

REPORT_GRACE = 3.0  # seconds to wait for the failed rank's own report before another reports the lost connection
POLL_INTERVAL = 0.02  # seconds
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Value = TypeVar("Value")
Sums = TypeVar("Sums", bound=tuple)


class PeerError(UserError):
    """Another rank is gone or does not respond. Unless it was killed, it has reported the reason."""

    exit_code = 1


class PeerEnvError(PeerError):
    """The environments of another rank failed. It reports why; all ranks still take part in saving."""

    def __init__(self) -> None:
        super().__init__("the environments of another rank failed")


class World:
    """The ranks of a run, seen from one of them. With a single rank, every operation returns its input at no cost."""

    def __init__(self, info: RankInfo | None = None, store: dist.Store | None = None, timeout: float = 0.0) -> None:
        self.info = info or RankInfo()
        self.rank, self.size = self.info.rank, self.info.size
        self.main = self.rank == 0  # the rank that writes files, shows progress and evaluates
        self.timeout, self._store = timeout, store

    def sum(self, tensor: Tensor) -> Tensor:
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter], scalars: Sums) -> Sums:
        """Sum the gradients over all ranks in place, and a named tuple of scalars, in one message."""
        if self.size == 1:
            return scalars
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        present = [value.detach().view(1) for value in scalars if value is not None]
        flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients] + present))
        *summed, sums = flat.split([*(gradient.numel() for gradient in gradients), len(present)])
        for gradient, new in zip(gradients, summed, strict=True):
            gradient.copy_(new.view_as(gradient))
        remaining = iter(sums.unbind())
        totals: list[Any] = [None if value is None else next(remaining) for value in scalars]
        return type(scalars)(*totals)

    def broadcast_weights(self, module: nn.Module) -> None:
        """Load the weights of rank 0 on every rank."""
        if self.size > 1:
            module.load_state_dict(self.broadcast({name: tensor.cpu() for name, tensor in module.state_dict().items()}))

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value on every rank."""
        if self.size == 1:
            return value
        box = [value if self.main else None]
        with self._peer_errors():
            dist.broadcast_object_list(box, 0)
        return box[0]  # type: ignore[return-value]

    def scatter(self, values: Sequence[Value] | None) -> Value:
        """Return this rank's value from rank 0's list, which has one value per rank."""
        box: list[Any] = [None]
        if self.size == 1:
            assert values is not None
            return values[0]
        with self._peer_errors():
            dist.scatter_object_list(box, list(values) if self.main and values is not None else None, 0)
        return box[0]

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, by rank, on rank 0; an empty list on the others."""
        if self.size == 1:
            return [value]
        boxes: list[Any] | None = [None] * self.size if self.main else None
        with self._peer_errors():
            dist.gather_object(value, boxes, 0)
        return boxes or []

    def fail_together(self, use_environments: Callable[[], Value]) -> Value:
        """Call a function on every rank. If environments fail on any of them, all ranks raise, and can save."""
        try:
            result = use_environments()
        except EnvError:
            with suppress(PeerError):
                self.max(torch.ones(()))
            raise
        if self.max(torch.zeros(())).item():
            raise PeerEnvError
        return result

    def leave(self) -> None:
        """Wait for all ranks to finish, then disconnect. If one fails before, all fail."""
        if self.size > 1:
            with self._peer_errors():
                dist.barrier()
            dist.destroy_process_group()

    def should_report(self, error: BaseException) -> bool:
        """Whether this rank should report the error. Each error is reported once, by the first rank that raises it.

        Ranks that only lost the connection to another stay silent if a rank has reported a cause.
        """
        if self._store is None:
            return True
        consequence = isinstance(error, PeerError | KeyboardInterrupt)
        with suppress(RuntimeError):  # the store is gone if the rank that hosted it has died
            if not consequence:
                self._store.add("causes", 1)
            else:
                deadline = time.monotonic() + REPORT_GRACE
                while time.monotonic() < deadline:
                    if self._store.add("causes", 0):
                        return False
                    time.sleep(0.1)
            # Ranks stop together, but may name different epochs or rows: one report is enough.
            text = "" if isinstance(error, KeyboardInterrupt | TrainingStoppedError | EnvError) else str(error)
            key = hashlib.sha256(f"{type(error).__name__}: {text}".encode()).hexdigest()
            reports = self._store.add(key, 1) == 1
            if self.rank == 0 and isinstance(error, TrainingStoppedError | EnvError):
                self._wait_until_all_asked(key)
            return reports
        return not consequence

    def _wait_until_all_asked(self, key: str) -> None:
        """Keep the store, which may end with this process, for slower ranks that stop for the same reason."""
        deadline = time.monotonic() + REPORT_GRACE
        while self._store is not None and self._store.add(key, 0) < self.size and time.monotonic() < deadline:
            time.sleep(0.05)

    def _all_reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        if self.size == 1:
            return tensor
        result = tensor.detach().clone()
        with self._peer_errors():
            dist.all_reduce(result, operation)
        return result

    @contextmanager
    def _peer_errors(self) -> Iterator[None]:
        """Raise PeerError for what torch raises: a collective operation fails only if a rank is gone or hangs."""
        try:
            yield
        except RuntimeError as error:
            log.info("%s", error)
            raise PeerError(
                "another rank of this run is gone, or did not respond within "
                f"{self.timeout:g} s (trainer.peer_timeout). Run the same command to resume from the last checkpoint"
            ) from error


ALONE = World()


def connect(info: RankInfo, device: torch.device, timeout: float) -> World:
    """Connect to the other ranks, if there are any. Call `leave` at the end of a successful run."""
    if info.size == 1:
        return ALONE
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank, size, limit = info.rank, info.size, timedelta(seconds=timeout)
    try:
        store = _rendezvous_store(info, limit)
        own = dist.PrefixStore(_handshake(store, rank, size, timeout), store)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        group_store = _loopback_store(own, info, limit) if info.local_size == size else own
        dist.init_process_group(backend, store=group_store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, TimeoutError) as error:
        reason = str(error).partition("\n")[0]
        raise PeerError(
            f"the {info.size} ranks of this run could not connect (trainer.peer_timeout={timeout:g}): {reason}"
        ) from error
    return World(info, dist.PrefixStore("engram", own), timeout)


def _rendezvous_store(info: RankInfo, timeout: timedelta) -> dist.Store:
    """The store of the launcher: torchrun's, or one that rank 0 opens at MASTER_PORT."""
    host, launched = os.environ["MASTER_ADDR"], os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if launched or host not in LOOPBACK or info.local_size < info.size:
        return next(dist.rendezvous("env://", timeout=timeout))[0]
    return _open_store(int(os.environ["MASTER_PORT"]), info.rank == 0, timeout)


def _loopback_store(rendezvous: dist.Store, info: RankInfo, timeout: timedelta) -> dist.Store:
    """A store for the ranks of one machine. Nothing on the network can reach it, nor the connections of gloo.

    Ranks unpickle what others send, so a program that poses as a rank could run code.
    """
    interfaces = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if interfaces:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interfaces[0])
    if info.rank:
        return _open_store(int(rendezvous.get("port")), False, timeout)
    store = _open_store(0, True, timeout)
    rendezvous.set("port", str(store.port))
    return store


def _open_store(port: int, host: bool, timeout: timedelta) -> dist.TCPStore:
    """A store on the loopback interface; torch's own listens on all of them."""
    if not host:
        return dist.TCPStore(LOOPBACK[0], port, None, False, timeout, wait_for_workers=False)
    listener = socket.create_server((LOOPBACK[0], port), backlog=1024)
    port = listener.getsockname()[1]
    return dist.TCPStore(
        LOOPBACK[0], port, None, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _handshake(store: dist.Store, rank: int, size: int, timeout: float) -> str:
    """Agree on a key prefix that only the ranks alive now know.

    torchrun keeps one store across restarts, so restarted ranks would find the addresses of dead ones in it. Therefore
    every rank posts a fresh id, rank 0 replies to each id, and waits until all ranks have confirmed its reply. Ids of
    dead ranks are never confirmed.
    """
    own_id, deadline = uuid4().hex, time.monotonic() + timeout
    if rank:
        store.set(f"hello/{rank}", own_id)
        store.wait([f"welcome/{own_id}"], timedelta(seconds=timeout))
        prefix = store.get(f"welcome/{own_id}").decode()
        store.set(f"confirmed/{prefix}/{rank}", "")
        return prefix
    missing = set(range(1, size))
    while missing:
        for other in sorted(missing):
            if store.check([f"hello/{other}"]):
                store.set(f"welcome/{store.get(f'hello/{other}').decode()}", own_id)
        missing = {other for other in missing if not store.check([f"confirmed/{own_id}/{other}"])}
        if missing and time.monotonic() > deadline:
            raise TimeoutError(f"ranks {sorted(missing)} of 0 to {size - 1} are missing")
        time.sleep(POLL_INTERVAL)
    return own_id
