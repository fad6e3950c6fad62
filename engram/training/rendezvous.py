"""How the processes of a run find each other."""

import time
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist

from engram.training.distributed import ALONE, PeerError, World
from engram.training.launch import Place

PAUSE = 0.02  # seconds between two looks


def meet(place: Place, device: torch.device, timeout: float) -> World:
    """Find the other processes, if there are any. Where all goes well, `leave` in the end."""
    if place.size == 1:
        return ALONE
    if device.type == "cuda":
        torch.cuda.set_device(device)
    patience = timedelta(seconds=timeout)
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=patience))
        own = dist.PrefixStore(_handshake(store, rank, size, timeout), store)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=patience)
    except (RuntimeError, TimeoutError) as error:
        reason = str(error).partition("\n")[0]
        raise PeerError(
            f"the {place.size} processes of this run did not find each other "
            f"(trainer.peer_timeout={timeout:g}): {reason}"
        ) from error
    return World(place, dist.PrefixStore("engram", own), timeout)


def _handshake(store: dist.Store, rank: int, size: int, timeout: float) -> str:
    """A name that only the processes which are here now have been told.

    torchrun keeps one store for all its attempts. When it starts processes again after one has died, they would find
    the addresses of the dead there. So everyone says who it is, the first answers each of them, and goes on when all
    have confirmed the answer: what the dead had said is never confirmed.
    """
    me, deadline = uuid4().hex, time.monotonic() + timeout
    if rank:
        store.set(f"hello/{rank}", me)
        store.wait([f"welcome/{me}"], timedelta(seconds=timeout))
        name = store.get(f"welcome/{me}").decode()
        store.set(f"confirmed/{name}/{rank}", "")
        return name
    waiting = set(range(1, size))
    while waiting:
        for other in sorted(waiting):
            if store.check([f"hello/{other}"]):
                store.set(f"welcome/{store.get(f'hello/{other}').decode()}", me)
        waiting = {other for other in waiting if not store.check([f"confirmed/{me}/{other}"])}
        if waiting and time.monotonic() > deadline:
            raise TimeoutError(f"{sorted(waiting)} of 0 to {size - 1} did not come")
        time.sleep(PAUSE)
    return me
