"""The pool of worker processes: exchanges commands and replies, and restarts workers that die, hang or raise."""

import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from engram.env.errors import EnvError, describe
from engram.env.workers.restarts import INTERRUPTED, Restarts
from engram.env.workers.transport import POLL_SECONDS, Command, Reply, ReplyReceiver, Status
from engram.env.workers.worker import WorkerProcess, WorkerSetup, end, launch

_ALL = -1  # the "batch" of a worker that is being built
_BEGINS_EPISODE = (Command.STEP, Command.RESET)  # commands after which environments have a running episode


class WorkerError(EnvError):
    """A worker failed and is not restarted. All workers have been ended when this is raised."""


@dataclass
class _PendingCommand:
    """A command that not all workers of a batch have finished."""

    command: Command
    arguments: dict[int, Any] | None = None  # by slot
    sent: set[int] = field(default_factory=set)  # slots


class WorkerPool:
    """One process for each setup, each with shares of some or all batches. Its index is the worker's slot.

    A worker carries out its commands in order, so workers step the next batch while the policy acts on this one. Both
    sides sleep in the kernel until a message arrives.
    """

    def __init__(
        self,
        environment: str,
        setups: Sequence[WorkerSetup],
        memory: int,
        step_timeout: float,
        start_timeout: float,
        restarts: Restarts,
    ) -> None:
        self._environment, self._setups = environment, setups
        # Saving is quick as well; anything else may have to build worlds or replay episodes.
        quick = (Command.STEP, Command.STATE)
        self._timeouts = [step_timeout if command in quick else start_timeout for command in Command]
        self._restarts = restarts
        self._receiver = ReplyReceiver()
        self._memory = os.dup(memory)
        self._launched = 0
        self._workers: dict[int, WorkerProcess] = {}  # by slot
        self._by_number: dict[int, WorkerProcess] = {}
        self._building: set[int] = set()  # numbers of workers
        self._pending: dict[int, _PendingCommand] = {}  # unfinished, by batch, oldest first
        self._results: dict[int, dict[int, Any]] = {}  # of the last command, by batch and slot
        self._without_episode: set[tuple[int, int]] = set()  # slot and batch of restarted environments
        self._started = False
        self.closed = False
        batches = sorted({batch for setup in setups for batch in setup.shares})
        self.steps = [0] * len(batches)  # of each batch; episodes of restarted environments are numbered from there
        self._owners = {batch: self._owners_of(batch) for batch in batches}
        try:
            for slot in range(len(setups)):
                self._launch(slot)
            for worker in list(self._workers.values()):
                self._wait_until_built(worker)
            self._started = True
        except BaseException:
            self.close()
            raise

    def start(self, command: Command, batch: int, arguments: Sequence[Any] | None = None) -> None:
        slots = self._owners[batch]
        if command == Command.STEP:
            self.steps[batch] += 1
        pending = _PendingCommand(command, None if arguments is None else dict(zip(slots, arguments, strict=True)))
        self._pending[batch], self._results[batch] = pending, {}
        for slot in slots:
            self._send(batch, slot)

    def finish(self, batch: int) -> list[Any]:
        """Waits for the results of a batch, one per share, and handles the replies of other batches meanwhile."""
        results, slots = self._results[batch], self._owners[batch]
        timeout = self._timeouts[self._pending[batch].command]
        while len(results) < len(slots):
            reply = self._receiver.receive()
            if reply is not None:
                self._handle(reply)
            else:
                self._wait(timeout, self._unfinished(batch))
        del self._pending[batch]
        return [results[slot] for slot in slots]

    def begin_restarted(self) -> list[tuple[int, int]]:
        """Begins episodes where a restarted worker has none yet; returns the batch and share of each."""
        begun = []
        for batch in sorted({batch for _, batch in self._without_episode}):
            new = [slot for slot in self._owners[batch] if (slot, batch) in self._without_episode]
            self._pending[batch] = _PendingCommand(Command.RESET)
            self._results[batch] = {slot: None for slot in self._owners[batch] if slot not in new}
            for slot in new:
                self._send(batch, slot)
            self.finish(batch)
            begun += [(batch, self._owners[batch].index(slot)) for slot in new]
        return begun

    def close(self) -> None:
        """Ends every worker, also those that hang or are stopped."""
        if not self.closed:
            self.closed = True
            end(list(self._workers.values()))
            self._receiver.close()
            os.close(self._memory)

    def _owners_of(self, batch: int) -> list[int]:
        """The slots of a batch, in the order of their shares."""
        slots = [slot for slot, setup in enumerate(self._setups) if batch in setup.shares]
        return sorted(slots, key=lambda slot: self._setups[slot].shares[batch].start)

    def _send(self, batch: int, slot: int) -> None:
        """Gives a worker its part of the command; restarted environments begin an episode instead of stepping."""
        pending, worker = self._pending[batch], self._workers[slot]
        pending.sent.add(slot)
        command, argument = pending.command, None if pending.arguments is None else pending.arguments[slot]
        if (slot, batch) in self._without_episode:
            if command in _BEGINS_EPISODE:
                command, argument = Command.RESET, self.steps[batch]
            elif command != Command.RESTORE:
                self._results[batch][slot] = INTERRUPTED
                return
        try:
            worker.commands.send(command, batch, b"" if argument is None else pickle.dumps(argument))
        except BlockingIOError:
            self._recover(worker, "hangs", self._no_reply(self._timeouts[Command.STEP]))
        except OSError:
            self._recover_dead(worker)

    def _handle(self, reply: Reply) -> None:
        worker, batch = self._by_number.get(reply.worker), reply.batch
        if worker is None:
            return  # the worker has been replaced
        if reply.status != Status.DONE:
            bad_number = reply.status == Status.NOT_FINITE and not self._restarts.bad_numbers
            fatal = bad_number or reply.status == Status.REFUSED
            self._recover(worker, "failed", reply.payload.decode(), fatal)
            return
        if batch == _ALL:
            self._building.discard(worker.number)
            return
        result = pickle.loads(reply.payload) if reply.payload else None
        if self._without_episode and (worker.slot, batch) in self._without_episode:
            self._without_episode.discard((worker.slot, batch))
            if self._pending[batch].command == Command.STEP:
                result = INTERRUPTED
        self._results[batch][worker.slot] = result

    def _wait(self, timeout: float, unfinished: Iterator[WorkerProcess]) -> None:
        """Waits for a reply in short polls and counts them, because a pause (Ctrl-Z) is not a timeout."""
        for _ in range(round(timeout / POLL_SECONDS)):
            dead = next((worker for worker in self._workers.values() if worker.died), None)
            reply = self._receiver.receive()
            if reply is not None:
                self._handle(reply)
                return
            if dead is not None:
                self._recover_dead(dead)
                return
        self._recover(next(unfinished), "hangs", self._no_reply(timeout))

    def _unfinished(self, batch: int) -> Iterator[WorkerProcess]:
        """The workers that have not replied to a batch's command."""
        return (self._workers[slot] for slot in self._owners[batch] if slot not in self._results[batch])

    def _launch(self, slot: int) -> WorkerProcess:
        setup, files = self._setups[slot], (self._receiver.worker_end.fileno(), self._memory)
        worker = launch(self._launched, slot, setup.shares, *files, self._timeouts[Command.STEP])
        self._launched += 1
        self._workers[slot] = self._by_number[worker.number] = worker
        self._building.add(worker.number)
        try:
            worker.commands.send(Command.BUILD, _ALL, pickle.dumps(setup))
        except OSError:
            self._recover_dead(worker)
        return worker

    def _wait_until_built(self, worker: WorkerProcess) -> None:
        while worker.number in self._building:
            self._wait(self._timeouts[Command.BUILD], iter([worker]))

    def _no_reply(self, timeout: float) -> str:
        stepping = timeout == self._timeouts[Command.STEP]
        setting = "trainer.worker_timeout, or VectorEnv's step_timeout" if stepping else "VectorEnv's start_timeout"
        return f"no reply for {timeout:g} s. If the environment is only slow, raise the timeout ({setting})."

    def _recover_dead(self, worker: WorkerProcess) -> None:
        """Handle the replies that a dead worker sent before; a failure that it reported is the cause."""
        while (reply := self._receiver.receive()) is not None:
            self._handle(reply)
        if self._workers[worker.slot] is worker:
            self._recover(worker, "died", worker.cause_of_death())

    def _recover(self, worker: WorkerProcess, outcome: str, what: str, fatal: bool = False) -> None:
        """Restarts a worker, or ends all of them and raises if that is not allowed."""
        failure = WorkerError(self._describe(worker, outcome, what))
        try:
            if fatal or not self._started:
                raise failure
            self._restarts.allow(failure)
        except WorkerError:
            worker.process.kill()  # if it hangs, it would not notice a closed socket
            self.close()
            raise
        self._replace(worker)

    def _replace(self, worker: WorkerProcess) -> None:
        slot = worker.slot
        worker.process.kill()
        end([worker])
        del self._by_number[worker.number]
        self._building.discard(worker.number)
        self._receiver.forget(worker.number)
        self._without_episode |= {(slot, batch) for batch in worker.shares}
        new = self._launch(slot)
        self._wait_until_built(new)
        for batch in list(self._pending):
            waiting = slot in self._pending[batch].sent and slot not in self._results[batch]
            if waiting and self._workers[slot] is new:  # if it failed too, its replacement has got the commands
                self._send(batch, slot)

    def _describe(self, worker: WorkerProcess, outcome: str, what: str) -> str:
        batches = [batch for batch in self._pending if worker in self._unfinished(batch)]
        verb, ids = "waiting with", list(worker.shares.values())
        if worker.number in self._building:
            verb = Command.BUILD.verb
        elif batches:
            verb, ids = self._pending[batches[0]].command.verb, [worker.shares[batches[0]]]
        subject = f"worker {worker.slot} of {len(self._setups)} {outcome}"
        return describe(self._environment, subject, verb, ids, what)
