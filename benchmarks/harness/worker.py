"""What runs inside a contender's process: load a case once, then work when told to.

Standard library only at the top: this file runs in every peer's environment. The parent writes one
JSON object a line to standard input and reads one a line from standard output; whatever libraries
print goes to standard error.

A contender is a module with a class ``Contender``::

    Contender(case: dict, data: dict[str, array])   builds networks, operators; not timed
        .work() -> outcome                          the timed work, finished when it returns
        .arrays(outcome) -> dict[str, array]        what is compared with the reference
        .kept(outcome) -> dict[str, int]            bytes of what the work leaves behind, by name
    versions() -> dict[str, str]
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any


def _load_arrays(path: str) -> dict[str, Any]:
    import numpy as np

    with np.load(path) as file:
        return {name: file[name] for name in file.files}


class _Session:
    """The commands a parent may send, one method each."""

    def __init__(self, module: str) -> None:
        self._module = importlib.import_module(module)
        self._contender: Any = None

    def versions(self) -> dict[str, Any]:
        return {"versions": self._module.versions()}

    def load(self, case: dict[str, Any], data: str) -> dict[str, Any]:
        self._contender = None  # free the last case before the next one is built
        self._contender = self._module.Contender(case, _load_arrays(data))
        return {}

    def time(self) -> dict[str, Any]:
        start = time.perf_counter()
        outcome = self._contender.work()
        seconds = time.perf_counter() - start
        del outcome
        return {"seconds": seconds}

    def measure(self, output: str) -> dict[str, Any]:
        """One more run, for peak memory, sizes, and the numbers themselves."""
        import numpy as np

        from harness.memory import peak_of

        outcome, peak, seconds, how = peak_of(self._contender.work)
        kept = {name: int(size) for name, size in self._contender.kept(outcome).items()}
        np.savez(output, **self._contender.arrays(outcome))
        return {"peak": peak, "seconds": seconds, "how": how, "kept": kept}


def _confine(threads: int) -> None:
    """Keep this process to `threads` cores: XLA sizes its thread pool by the cores it may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def main() -> None:
    module, threads = sys.argv[1:]
    _confine(int(threads))
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    session = None
    for line in sys.stdin:
        request = json.loads(line)
        command = request.pop("command")
        try:
            session = session or _Session(module)
            reply = getattr(session, command)(**request)
        except BaseException as error:  # the parent prints it in the table
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
