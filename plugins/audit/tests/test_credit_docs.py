"""The worked example of the credit guide does what the guide says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

GUIDE = Path(__file__).parents[3] / "docs" / "credit.md"


def test_the_worked_example_prints_what_the_guide_shows():
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    code, expected = found.groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(GUIDE), "exec"), {})
    assert printed.getvalue() == expected
