"""Writes docs/store-openapi.json: the OpenAPI document of the store's server."""

from __future__ import annotations

import json
from pathlib import Path

from agl_cluster.store.openapi import document

FILE = Path(__file__).parent.parent / "docs" / "store-openapi.json"


def text() -> str:
    """Return the file's text. The version of the suite is left out: the file changes with the routes only."""
    made = json.loads(json.dumps(document()))
    made["info"]["version"] = "1"
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
