"""The same calculator as an MCP server over stdio: ``python -m calc_x.calculator_server``.

``workbench()`` is the client side for AutoGen. Its read timeout bounds every answer of the server, so a
server that hangs costs one failed tool call and never the run. autogen-ext 0.7 speaks to mcp 1.x only (``pip
install 'mcp<2'``).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from calc_x.calculator import DESCRIPTION, calculate

if TYPE_CHECKING:
    from autogen_ext.tools.mcp import McpWorkbench


def workbench(read_timeout_seconds: float = 30.0, command: list[str] | None = None) -> McpWorkbench:
    """An AutoGen workbench that starts the server (or ``command``) as a subprocess; use it with ``async
    with``.
    """
    from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

    program, *args = command or [sys.executable, "-m", "calc_x.calculator_server"]
    environment = {**os.environ, "PYTHONPATH": _python_path()}
    return McpWorkbench(
        StdioServerParams(
            command=program, args=args, env=environment, read_timeout_seconds=read_timeout_seconds
        )
    )


def main() -> None:
    """Serve until the client closes stdin."""
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("calculator", log_level="WARNING")
    server.add_tool(calculate, name="calculate", description=DESCRIPTION, structured_output=False)
    server.run("stdio")


def _python_path() -> str:
    """The folder this package lies in, ahead of the present path: the subprocess imports the very same
    calc_x.
    """
    here = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))


if __name__ == "__main__":
    main()
