"""CrewAI reads these when it is imported: no telemetry, no traces."""

from __future__ import annotations

import os

os.environ["CREWAI_DISABLE_TELEMETRY"], os.environ["CREWAI_TRACING_ENABLED"] = "true", "false"
