"""Contenders take turns in one run: A B C A B C ..., each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .environments import BENCHMARKS, Environment, InstallationError, search_path

_WARM_UP_SECONDS = 1.0  # repeat the warm-up until this much was spent on it
_SLOW_SECONDS = 5.0  # beyond this the run that measures memory is one of the timed ones
_PAUSE_SECONDS = 0.05  # OpenMP threads spin for a while after their work: let them fall asleep


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Parameters
    ----------
    name : str
        As printed in the table.
    module : str
        Module with the class the worker instantiates, e.g. ``contenders.gram_lingp``.
    environment : Environment or None
        None: the environment the benchmark itself runs in.
    options : mapping
        Joined to the case before it is handed to the worker.
    timed_only : bool
        Neither memory nor numbers are asked for (a machine's GEMM rate, a forward pass).
    """

    name: str
    module: str
    environment: Environment | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    timed_only: bool = False


@dataclass
class Result:
    """What one contender did on one case."""

    seconds: list[float] = field(default_factory=list)
    peak: int | None = None
    how: str = ""
    kept: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    failure: str = ""

    @property
    def median(self) -> float:
        """Median of the timed runs, in seconds; nan if there are none."""
        return statistics.median(self.seconds) if self.seconds else float("nan")


@dataclass(frozen=True)
class Schedule:
    """How often contenders work.

    Each takes at least `least` timed turns, then goes on while it has spent less than `budget`
    seconds, up to `most` turns. A call that takes longer than `timeout` seconds ends the contender.
    """

    least: int = 3
    most: int = 15
    budget: float = 3.0
    timeout: float = 240.0


class WorkerError(RuntimeError):
    """The contender's process answered with an error, died, or took too long."""


class Worker:
    """A contender's process; stays alive from case to case, so imports are never timed."""

    def __init__(self, contender: Contender, cache: Path, threads: int) -> None:
        own = contender.environment is None
        python = sys.executable if own else str(contender.environment.python(cache))
        variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= dict.fromkeys(variables, str(threads))
        environment |= {"PYTHONPATH": search_path(own=own), "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            [python, "-m", "harness.worker", contender.module, str(threads)],
            cwd=BENCHMARKS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
            bufsize=1,
        )
        self._replies: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._process.stdout:
            self._replies.put(line)
        self._replies.put("")  # the process has gone

    def ask(self, command: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its reply."""
        try:
            self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            line = self._replies.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise WorkerError(f"no answer within {timeout:.0f} s") from None
        except OSError:
            line = ""
        if not line:
            raise WorkerError(f"the process died (exit status {self._process.wait()})")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def log(self) -> str:
        """What the process printed."""
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()


class Field:
    """All contenders of a benchmark, their processes started when first needed."""

    def __init__(self, contenders: Sequence[Contender], cache: Path, threads: int) -> None:
        self.contenders = list(contenders)
        self.versions: dict[str, dict[str, str]] = {}
        self.threads = threads
        self.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        self._cache = cache
        self._workers: dict[str, Worker] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="lingp-benchmark-")

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers.values():
            worker.close()
        self._folder.cleanup()

    def compete(
        self,
        case: Mapping[str, Any],
        data: Mapping[str, np.ndarray],
        schedule: Schedule,
        contenders: Sequence[Contender] | None = None,
    ) -> dict[str, Result]:
        """Run one case: load everywhere, warm up, take turns, then measure memory and numbers."""
        contenders = self.contenders if contenders is None else contenders
        results = {contender.name: Result() for contender in contenders}
        path = self._saved(data)
        for contender in contenders:
            self._guarded(contender, results, self._prepare, dict(case), path, schedule)
        for turn in range(schedule.most):
            for contender in contenders:
                self._guarded(contender, results, self._turn, turn, schedule)
        for contender in contenders:
            if not contender.timed_only:
                self._guarded(contender, results, self._measure, schedule)
        return results

    def answers(
        self,
        case: Mapping[str, Any],
        data: Mapping[str, np.ndarray],
        schedule: Schedule,
        contenders: Sequence[Contender] | None = None,
    ) -> dict[str, Result]:
        """Run one case once: numbers are asked for, times only as far as one run tells them."""
        contenders = self.contenders if contenders is None else contenders
        results = {contender.name: Result() for contender in contenders}
        path = self._saved(data)
        for contender in contenders:
            self._guarded(contender, results, self._load, dict(case), path, schedule)
            self._guarded(contender, results, self._measure, schedule)
        return results

    def _saved(self, data: Mapping[str, np.ndarray]) -> str:
        path = str(Path(self._folder.name) / "data.npz")
        np.savez(path, **data)
        return path

    def _guarded(
        self, contender: Contender, results: Mapping[str, Result], step: Any, *arguments: Any
    ) -> None:
        """One step of one contender, unless it has failed; when it fails, keep the reason."""
        result = results[contender.name]
        if result.failure:
            return
        try:
            step(contender, result, *arguments)
        except (WorkerError, InstallationError) as error:
            result.failure = str(error).splitlines()[0]
            self._report(contender, result)

    def _worker(self, contender: Contender) -> Worker:
        # By name: contenders that differ in options only have processes of their own too.
        if contender.name not in self._workers:
            self._workers[contender.name] = Worker(contender, self._cache, self.threads)
        return self._workers[contender.name]

    def _load(
        self,
        contender: Contender,
        result: Result,
        case: dict[str, Any],
        path: str,
        schedule: Schedule,
    ) -> None:
        worker = self._worker(contender)
        if contender.name not in self.versions:
            answer = worker.ask("versions", schedule.timeout)
            self.versions[contender.name] = answer["versions"]
        options = {**case, **contender.options, "threads": self.threads}
        worker.ask("load", schedule.timeout, case=options, data=path)

    def _prepare(
        self,
        contender: Contender,
        result: Result,
        case: dict[str, Any],
        path: str,
        schedule: Schedule,
    ) -> None:
        self._load(contender, result, case, path, schedule)
        worker = self._worker(contender)
        spent = 0.0
        while spent < _WARM_UP_SECONDS:
            start = time.perf_counter()
            worker.ask("time", schedule.timeout)
            spent += time.perf_counter() - start

    def _turn(self, contender: Contender, result: Result, turn: int, schedule: Schedule) -> None:
        enough = sum(result.seconds) >= schedule.budget
        if turn >= schedule.least and enough:
            return
        if turn == schedule.least - 1 and turn > 0 and min(result.seconds) > _SLOW_SECONDS:
            return  # `_measure` runs it once more
        time.sleep(_PAUSE_SECONDS)
        result.seconds.append(self._worker(contender).ask("time", schedule.timeout)["seconds"])

    def _measure(self, contender: Contender, result: Result, schedule: Schedule) -> None:
        output = str(Path(self._folder.name) / "outcome.npz")
        answer = self._worker(contender).ask("measure", schedule.timeout, output=output)
        result.peak, result.how, result.kept = answer["peak"], answer["how"], answer["kept"]
        if len(result.seconds) < schedule.least:
            result.seconds.append(answer["seconds"])
        with np.load(output) as file:
            result.arrays = {name: file[name] for name in file.files}

    def _report(self, contender: Contender, result: Result) -> None:
        print(f"{contender.name}: {result.failure}", file=sys.stderr)
        worker = self._workers.pop(contender.name, None)
        if worker is not None:
            print(worker.log()[-4000:], file=sys.stderr)
            worker.close()
