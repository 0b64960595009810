"""A program that cannot be changed, as an agent: a command line runs it on each task.

:mod:`.agent` is the agent, :mod:`.command` puts the task into the command line, :mod:`.folder` makes a
working folder for each attempt, :mod:`.child` runs the process, :mod:`.relay` witnesses its model calls, and
:mod:`.reward` reads its reward. :mod:`.settings` are the fields of a run's description.
"""

from __future__ import annotations
