"""An agent whose tools are those of the MCP server that ``MCP_SERVER`` names."""

from __future__ import annotations

import os

import agentlightning as agl
from agl_examples.bundled import mcp

clerk = agl.Agent("clerk", "Use the tools.", mcp=[os.environ["MCP_SERVER"]], grade=mcp.grade, max_turns=3)
