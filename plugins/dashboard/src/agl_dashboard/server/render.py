"""Templates to pages. Every value is escaped; a template writes no script and no style.

Invariant: text is legal HTML whatever an agent wrote: control characters become visible signs, lone
surrogates the replacement character.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agentlightning.redaction import redacted
from agentlightning.types.arrays import to_list

HERE: Final = Path(__file__).resolve().parents[1]
STATIC: Final = HERE / "static"
THEME: Final = "agl_theme"
_ILLEGAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")
_PICTURES = {**{n: chr(0x2400 + n) for n in range(32)}, 127: "␡"}


def text(value: Any) -> str:
    """Return a value as text that a page can hold: signs for control characters and for changes of the
    writing direction, which could show other text than stands there; ``***`` for passwords in URLs.
    """
    return _ILLEGAL.sub(lambda found: _PICTURES.get(ord(found[0]), "\ufffd"), redacted(value))


def number(value: Any, digits: int = 4) -> str:
    """Return a number with so many significant digits, and a dash for ``None``."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return text(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def signed(value: float | None, digits: int = 3) -> str:
    """Return a number with its sign."""
    return "–" if value is None else f"{value:+.{digits}f}"


def seconds(value: float | None) -> str:
    """Return a duration."""
    if value is None:
        return "–"
    if value < 0.0995:
        return f"{1000 * value:.1f} ms" if value < 0.00995 else f"{1000 * value:.0f} ms"
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def moment(value: float | None) -> str:
    """Return a time of the wall clock, local."""
    return "–" if not value else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))


def iso(value: float | None) -> str:
    """Return a time for a ``datetime`` attribute."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value or 0.0))


def size(value: float | None) -> str:
    """Return a number of bytes."""
    if value is None:
        return "–"
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def pretty(value: Any) -> str:
    """Return a value as indented JSON, or as it is if it is text."""
    if isinstance(value, str):
        return text(value)
    plain = msgspec.to_builtins(value, enc_hook=_plain)
    return text(json.dumps(plain, indent=2, ensure_ascii=False, default=str))


def short(value: Any, most: int = 160) -> str:
    """Return the beginning of a value on one line."""
    line = " ".join(text(value if isinstance(value, str) else json.dumps(value, default=str)).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _plain(value: Any) -> Any:
    try:
        return to_list(value)
    except (TypeError, NotImplementedError):
        return str(value)


def path(*parts: str | int) -> str:
    """Return an address from its parts, each of which may hold any text."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


@cache
def asset(name: str) -> str:
    """Return the address of a static file, which changes with its content."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:10]
    return f"/static/{name}?{digest}"


@cache
def environment() -> Environment:
    """Return the templates, with the filters above."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: text(value) if type(value) is str else value,
    )
    filters = (number, signed, seconds, moment, iso, size, pretty, short)
    made.filters.update({one.__name__: one for one in filters})
    made.globals.update(path=path, asset=asset)
    return made


def render(request: web.Request, template: str, values: Mapping[str, Any], status: int = 200) -> web.Response:
    """Return a page."""
    theme = request.cookies.get(THEME, "")
    common = {
        "theme": theme if theme in ("light", "dark") else "",
        "live": "",
        "trail": [],
        "again": False,
        "here": request.path,
    }
    body = environment().get_template(template).render({**common, **values})
    return web.Response(text=body, content_type="text/html", charset="utf-8", status=status)
