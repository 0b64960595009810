"""What happens inside a program that ``agl run`` started: capture begins before the program's own code.

``bootstrap/`` goes on the program's PYTHONPATH; :mod:`.import_hook` tells when an SDK or a framework has been
imported; :mod:`.start` then names the attempt and instruments it; :mod:`.exporter` takes what is recorded to
``agl run``. The program imports nothing of this.

Invariant: whatever fails here, the program runs as it would have without us, and the failure is told.
"""

from __future__ import annotations
