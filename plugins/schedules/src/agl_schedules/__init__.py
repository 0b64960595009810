"""Which tasks a run trains next, and when it is enough.

:mod:`.settings` has the fields of the section ``training``; :mod:`.schedule` chooses the groups of a step by
them, and :mod:`.enough` looks at the evaluations. Core asks for both by the hook ``agl_schedules``.
"""

from __future__ import annotations

from agl_schedules.specs import Curriculum as Curriculum, CurriculumSpec as CurriculumSpec
