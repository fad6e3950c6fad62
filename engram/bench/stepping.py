"""Contestants within this process: a function that is called over and over."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from engram.bench.race import Measure, Slice

Step = Callable[[], float]  # does something once, and says how much


def repeating(
    make: Callable[[], AbstractContextManager[Step]], threads: int
) -> Callable[[], AbstractContextManager[Measure]]:
    """What `Contestant.open` needs, for a step that is made when it is wanted, with so many of torch's threads."""

    @contextmanager
    def open_it() -> Iterator[Measure]:
        with make() as step:

            def measure(seconds: float) -> Slice:
                torch.set_num_threads(threads)
                step()  # caches are the previous contestant's, and threads may have to be made
                work, start = 0.0, time.perf_counter()
                while True:
                    work += step()
                    elapsed = time.perf_counter() - start
                    if elapsed >= seconds:
                        return Slice(work, elapsed)

            yield measure

    return open_it
