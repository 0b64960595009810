"""What DSPy and litellm read when they are imported: no questions to the network, no cache at home."""

from __future__ import annotations

import os
import tempfile

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp(prefix="agl-dspy-")
