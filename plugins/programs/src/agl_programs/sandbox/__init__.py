"""Commands in the kernel's isolation: of a task, of its tests, of an agent's tools.

:mod:`.box` is the sandbox that Python code uses, and :mod:`agl_programs.commands` runs programs in it. Both
call :mod:`.run`, which starts the command, watches its limits (:mod:`.watch`) and ends it. :mod:`.bubblewrap`
makes the command line, :mod:`.filter` the filter of system calls, :mod:`.inside` is what runs inside before
the command does; :mod:`.engine` is the same by an image of podman or docker. :mod:`.files` reads and writes
the folder of a sandbox without following what the command put there.
"""

from __future__ import annotations
