"""One subject in a process of its own: ``python child.py MODULE FOLDER THREADS``.

Commands are JSON lines on standard input, ``{"method": …, "arguments": {…}}``. Each is answered by a JSON
line with ``seconds``, ``cpu_seconds`` (of this process, all its threads) and ``result``, or with ``error``.
Whatever a library prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any


def main() -> None:
    """Make the subject, say which version it has, and do what is asked until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    def carry_out(function: Any, arguments: dict[str, Any]) -> Any:
        began, cpu = time.perf_counter(), time.process_time()
        try:
            result = function(**arguments)
        except Exception as error:  # a subject's failure is a row of the table
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"[:600]})
            return None
        taken = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
        answer(taken | {"result": getattr(result, "version", result)})
        return result

    module, folder, threads = sys.argv[1:]
    subject = carry_out(lambda: importlib.import_module(module).Subject(folder, int(threads)), {})
    for line in sys.stdin if subject is not None else ():
        command = json.loads(line)
        carry_out(getattr(subject, command["method"]), command["arguments"])
    if hasattr(subject, "close"):
        subject.close()


if __name__ == "__main__":
    main()
