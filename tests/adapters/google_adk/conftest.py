"""What Google ADK and litellm read when they are imported: no questions to the network."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["ADK_DISABLE_LOAD_DOTENV"] = "1"
