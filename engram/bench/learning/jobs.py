"""Runs the jobs of a benchmark in separate processes, several at once. Finished ones are kept."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock
from typing import Any

from engram.bench.learning.suite import Job
from engram.bench.process import ProgramError, thread_variables
from engram.bench.result import write


class Processes:
    """The processes that are running, so that they can be stopped together."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self._stopped = Lock(), False

    def run(self, words: Sequence[str], log: Path, capture: bool = False) -> str:
        """Run `engram …` with one thread; raises `ProgramError` with the last line of its output."""
        command = [sys.executable, "-m", "engram", *words]
        variables = {**os.environ, **thread_variables(1)}
        with log.open("a", encoding="utf-8") as file, self._lock:
            if self._stopped:
                raise ProgramError("stopped")
            stdout = subprocess.PIPE if capture else file
            process = subprocess.Popen(
                command, stdout=stdout, stderr=file, text=True, env=variables, start_new_session=True
            )
            self._running.add(process)
        output, _ = process.communicate()
        with self._lock:
            self._running.discard(process)
        if process.returncode:
            raise ProgramError(_last_line(log) or f"exit code {process.returncode}")
        return output or ""

    def stop(self) -> None:
        """Ask running processes to stop; training since their last checkpoint is lost."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


def run_jobs(jobs: Sequence[Job], at_once: int, progress: Callable[[str], None]) -> dict[str, str]:
    """Run the jobs that are not finished; returns the errors of those that failed, by the name of the job."""
    waiting = [job for job in jobs if not is_finished(job)]
    if len(waiting) < len(jobs):
        progress(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are finished already")
    failures: dict[str, str] = {}
    processes = Processes()
    with ThreadPoolExecutor(at_once) as executor:
        futures = {executor.submit(_run, job, processes): job for job in waiting}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                job = futures[future]
                try:
                    outcome = future.result()
                except ProgramError as error:
                    outcome = failures[job.name] = str(error)
                progress(f"{number} of {len(waiting)}: {job.title}: {outcome}")
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            raise
    return failures


def is_finished(job: Job) -> bool:
    """Whether the job was trained and evaluated with as many episodes."""
    return read_scores(job).get("episodes") == job.options.episodes


def read_scores(job: Job) -> dict[str, Any]:
    """The final evaluations of a finished job, otherwise an empty dictionary."""
    if not job.score_file.exists():
        return {}
    return json.loads(job.score_file.read_text(encoding="utf-8"))


def _run(job: Job, processes: Processes) -> str:
    """Train and evaluate; a run that was stopped earlier resumes from its checkpoint."""
    job.log_file.parent.mkdir(parents=True, exist_ok=True)
    processes.run(["train", *job.train_words], job.log_file)
    played = {
        name: json.loads(processes.run(["eval", *job.eval_words(greedy), "--json"], job.log_file, capture=True))
        for name, greedy in (("greedy", True), ("sampled", False))
    }
    scores = {name: evaluation["return"] for name, evaluation in played.items()}
    temporary = job.score_file.with_suffix(".part")
    write({"episodes": job.options.episodes, "commit": commit(), "commands": job.commands, **scores}, temporary)
    temporary.replace(job.score_file)
    return f"greedy {scores['greedy']['mean']:.4g}, sampled {scores['sampled']['mean']:.4g}"


def commit() -> str | None:
    """The commit of the clone that Engram runs from, with + if files were changed; None outside of a clone."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
