"""The program that runs chat templates: orders come on standard input, one JSON object a line, and each is
answered by one line on standard output.

A template sees messages, tools, special tokens and the functions that published templates use, in jinja2's
immutable sandbox, with limits on CPU time, memory and length of the text. This file imports nothing of the
suite. Convention of variables and functions: the chat templating guide of the transformers documentation.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from datetime import datetime
from typing import IO, Any

SECONDS = 2.0
"""CPU time of one rendering."""
MEMORY = 2**30
"""Bytes of address space."""
LONGEST = 2**25
"""Characters of one rendered text."""


class Arguments(dict[str, Any]):
    """The arguments of a call, which ``tojson`` writes as the model did, character by character."""

    text = ""


def main(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer orders until they end."""
    _limit_memory()
    templates: dict[str, Any] = {}
    environment = _environment()
    for line in source:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        reply = json.dumps(_answer(line, templates, environment))
        signal.setitimer(signal.ITIMER_PROF, 0)
        target.write(reply.encode() + b"\n")
        target.flush()


def _answer(line: bytes, templates: dict[str, Any], environment: Any) -> dict[str, Any]:
    import jinja2

    try:
        order = json.loads(line)
        template = templates[order["key"]] = templates.get(order["key"]) or order["source"]
        if isinstance(template, str):
            template = templates[order["key"]] = environment.from_string(template)
        variables = order["variables"]
        if variables is None:
            return {"text": ""}
        if order["mapping"]:
            _map_arguments(variables.get("messages", ()))
        return {"text": _cut(template.generate(variables))}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"chat template, line {error.lineno}: {error.message}"}
    except _Refusal as error:
        return {
            "error": f"the chat template refuses this conversation ({_place(error)}): {str(error)[:1000]}"
        }
    except MemoryError:
        return {"error": f"chat template: stopped: it took more than {MEMORY >> 20} MiB", "stopped": True}
    except _TooLong:
        return {"error": f"chat template: stopped: it wrote over {LONGEST} characters", "stopped": True}
    except RecursionError:
        return {"error": "chat template: nested too deeply, in the template or in the messages"}
    except Exception as error:
        said = str(error) or type(error).__name__
        return {"error": f"chat template, {_place(error)}: {said[:1000]}"}


def _cut(pieces: Any) -> str:
    texts, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > LONGEST:
            raise _TooLong
        texts.append(piece)
    return "".join(texts)


def _map_arguments(messages: Any) -> None:
    for i, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            function = call["function"]
            text = function["arguments"]
            try:
                found = json.loads(text)
            except ValueError as error:
                raise _Refusal(
                    f"messages[{i}]: arguments of {function['name']!r} are no JSON: {error}"
                ) from None
            if not isinstance(found, dict):
                raise _Refusal(f"messages[{i}]: arguments of {function['name']!r} are no JSON object")
            function["arguments"] = Arguments(found)
            function["arguments"].text = text


def _limit_memory() -> None:
    import resource

    # not on every system: the limit of time holds there alone
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process


class _TooLong(Exception):
    """The text is over ``LONGEST``."""


class _Refusal(Exception):
    """What the template says by ``raise_exception``, or what the messages lack."""


def _place(error: BaseException) -> str:
    """The line of the template; jinja2 puts it into the traceback."""
    line, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<template>":
            line = step.tb_lineno
        step = step.tb_next
    return "before its first line" if line is None else f"line {line}"


def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %} … {% endgeneration %}`` marks assistant text; rendering keeps what is inside."""

        tags = {"generation"}

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return made


def _refuse(message: str) -> None:
    raise _Refusal(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escaping: jinja2's own filter would write ``&`` and ``<`` as escapes."""
    if isinstance(value, Arguments) and indent is None and separators is None and not sort_keys:
        return value.text
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
