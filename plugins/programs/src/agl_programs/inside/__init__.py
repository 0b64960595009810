"""The part of ``agl run`` inside the program's processes: capture begins before the program's own code.

``bootstrap/`` is on the program's PYTHONPATH. :mod:`.watch` waits for the import of an SDK or a
framework, :mod:`.start` then instruments it, and :mod:`.exporter` sends what is recorded to ``agl run``.

Invariant: if anything fails here, the program runs as it would without capture, and the failure is
reported.
"""

from __future__ import annotations
