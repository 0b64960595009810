"""Where an agent's calls went, and the places in its code that send them past the gateway.

The code is read, not run: a client or a model made at import, an address or a key of its own, a vendor's
model. Each is only told where calls did go past, or where the agent could not be imported: a vendor's name in
a request to the gateway, for one, does no harm.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agl_programs.commands.agent import CommandAgent

from agentlightning.redaction import redacted
from agentlightning.train.configured import ConfiguredRun
from agentlightning.types.base import vendor
from agl_testing.doctor.report import Notes

Kind = Literal["import_time_model", "own_base_url", "vendor_key", "vendor_model"]
ADVICE: Mapping[Kind, str] = {
    "import_time_model": "Make model, client and graph in a function that the rollout calls, from llm.model, "
    "llm.endpoint and llm.api_key: what is made at import knows no rollout.",
    "own_base_url": "Give the client base_url=llm.endpoint: calls to any other address are not recorded.",
    "vendor_key": "Give the client api_key=llm.api_key, and base_url=llm.endpoint with it.",
    "vendor_model": "Ask for llm.model, at llm.endpoint: a vendor's model is not the one that is trained.",
}
CLIENTS = re.compile(
    r"((Async)?(Azure)?(OpenAI|Anthropic|AnthropicBedrock|Client)|Chat[A-Z]\w+|init_chat_model|\w+(ChatModel|ChatClient)"
    r"|\w+ChatCompletions?(Client|Model)|\w+ResponsesModel|OpenAI(Like|Model|Provider|Credential)|LiteLlm|LM|LLM)"
)
"""Names of what calls a model in the frameworks that have an adapter."""
ADDRESS = ("base_url", "api_base", "openai_api_base", "endpoint", "azure_endpoint", "model_url")
KEY = ("api_key", "openai_api_key", "anthropic_api_key")
MODEL = re.compile(r"[a-z0-9][\w.:/-]*", re.IGNORECASE)
OPERATIONS = ("/chat/completions", "/completions", "/responses", "/messages")
"""Ends of the paths of model calls."""

HTTP = ("httpx", "httpx2")
"""What the clients of vendors send with."""


class Fault(NamedTuple):
    """A place in the code that sends calls past the gateway."""

    kind: Kind
    place: str
    """File and line."""
    what: str

    def tell(self, notes: Notes, *, fail: bool) -> None:
        """Add the fault to a check."""
        (notes.fail if fail else notes.warn)(f"{self.place} {self.what}", ADVICE[self.kind])


def faults_of_run(configured: ConfiguredRun) -> list[Fault]:
    """Return the faults in the user's own modules, or in the files that the command names."""
    config, agent = configured.trainer.config, configured.agent
    folders = [config.path("."), *(config.path(folder) for folder in config.pythonpath)]
    if isinstance(agent, CommandAgent):
        words = getattr(config.agent, "command", None) or []
        line = words if isinstance(words, str) else " ".join(words)
        named = [config.path(word) for word in line.split() if word.endswith(".py")]
    else:
        origins = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
        named = [Path(origin).resolve() for origin in origins if origin]
    return faults_of(path for path in named if any(path.is_relative_to(folder) for folder in folders))


def faults_of_import(error: BaseException) -> list[Fault]:
    """Return the faults in the user's files among which an import failed."""
    cause = error.__cause__
    frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
    return faults_of(Path(frame.filename) for frame in frames)


def faults_of(paths: Iterable[Path]) -> list[Fault]:
    """Return the faults of files that are the user's own, once each."""
    found: dict[Fault, None] = {}
    for path in dict.fromkeys(paths):
        if path.suffix == ".py" and path.is_file() and not _installed(path):
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                continue
            found.update(dict.fromkeys(_faults(tree, path.name)))
    return [*found]


def _installed(path: Path) -> bool:
    places = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    return any(path.resolve().is_relative_to(place) for place in places)


def _faults(tree: ast.Module, file: str) -> Iterator[Fault]:
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    at_import = {id(node) for node in _run_at_import(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        place = f"{file}:{node.lineno}"
        named = {word.arg: _meaning(word.value, constants) for word in node.keywords if word.arg}
        given = [*named.values(), *(_meaning(value, constants) for value in node.args)]
        models = [text for one in given if (text := _text(one)) and MODEL.fullmatch(text) and vendor(text)]
        addresses = [text for name in ADDRESS if (text := _text(named.get(name))) and "://" in text]
        keys = [name for name in KEY if name in named and _own_key(named[name])]
        if id(node) in at_import and (CLIENTS.fullmatch(_name(node)) or models or addresses or keys):
            yield Fault("import_time_model", place, f"makes a model at import: {_name(node)}(…)")
        if addresses:
            yield Fault(
                "own_base_url", place, f"gives {_name(node)} an address of its own, {redacted(addresses[0])}"
            )
        if keys:
            yield Fault("vendor_key", place, f"gives {_name(node)} a key of its own, by {keys[0]}")
        for model in models:
            yield Fault("vendor_model", place, f"asks for {model}, a model of {vendor(model)}")


def _run_at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that are evaluated when the module is imported: not the bodies of functions, nor what
    stands under ``if __name__ == "__main__"``.
    """
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.If) and "__name__" in ast.dump(node.test):
            left += node.orelse
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            left += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif not isinstance(node, ast.Lambda):
            left += ast.iter_child_nodes(node)


def _name(call: ast.Call) -> str:
    """Return the last word of what is called."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _meaning(value: ast.expr, constants: Mapping[str, ast.expr]) -> ast.expr:
    """Return what a name of the module stands for, and any other expression as it is."""
    return constants.get(value.id, value) if isinstance(value, ast.Name) else value


def _text(value: ast.expr | None) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _own_key(value: ast.expr) -> bool:
    """Whether a key comes from the environment, or stands in the code and is none for show."""
    written = ast.dump(value)
    return (
        "environ" in written or "getenv" in written or _text(value).startswith(("sk-", "sk_", "AIza", "xai-"))
    )


@contextmanager
def watched_hosts() -> Iterator[Counter[str]]:
    """Count, by host, the model calls that agents of this process send with httpx within the block."""
    seen: Counter[str] = Counter()

    def watched(send: Any) -> Any:
        @wraps(send)
        def sent(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if request.method == "POST" and request.url.path.endswith(OPERATIONS):
                seen[request.url.netloc.decode("ascii", "replace")] += 1
            return send(client, request, *args, **kwargs)

        return sent

    with ExitStack() as stack:
        for name in HTTP:
            if find_spec(name) is not None:
                module = import_module(name)
                for client in (module.Client, module.AsyncClient):
                    stack.callback(setattr, client, "send", client.send)
                    client.send = watched(client.send)
        yield seen
