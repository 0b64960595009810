"""``agl run``: a program that knows nothing of us, as rollouts.

Store and gateway run here, the program in processes of its own: its model calls come through the gateway, its
spans through the :mod:`.collector`. :mod:`.session` holds what is open, :mod:`.process` runs one process,
:mod:`.summary` says what was captured.
"""

from __future__ import annotations
