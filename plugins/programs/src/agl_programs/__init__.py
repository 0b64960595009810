"""``agl run``: runs an unchanged program, each of its processes as a rollout.

This process holds the store and the gateway. The program's model calls come through the gateway, its spans
through the :mod:`.collector`. :mod:`.session` opens all of this, :mod:`.attempts` runs processes as attempts,
:mod:`.process` starts one, :mod:`.summary` reports what was captured, and :mod:`.inside` is the part that
runs in the program's own processes.
"""

from __future__ import annotations
