"""What ``agl doctor`` asks before a run: is the client here, the server up, and does it have the model?"""

from __future__ import annotations

import importlib.metadata
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from agentlightning.types import UsageError
from agl_tinker.options import NOT_INSTALLED, Options, key, read_options

_SECONDS = 20


class Unreachable(UsageError):
    """Nobody who speaks the API answers at the server's address."""


def environment_info(options: Mapping[str, Any]) -> dict[str, str]:
    """The client's version and, with options, the server and the model's context there. UsageError for what
    is missing. Without options no server is asked.
    """
    try:
        found = {"tinker": importlib.metadata.version("tinker")}
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(NOT_INSTALLED) from None
    return {**found, **(ask_server(read_options(options)) if options else {})}


def request(url: str, server: str | None) -> urllib.request.Request:
    """A GET of ``url``, with the key where it is ``server``'s; a redirection does not take the key along."""
    made = urllib.request.Request(url)
    if server is not None and url.startswith(f"{server}/"):
        made.add_unredirected_header("X-API-Key", key())
    return made


def ask_server(options: Options) -> dict[str, str]:
    """What the server says of the run's model. Raises UsageError for a model that it does not train, and
    Unreachable without an answer.
    """
    url = options.url
    if url is None:  # the hosted service is not asked before a person starts a run
        key()
        return {"server": "the hosted service", "key": "set"}
    asked = request(f"{url}/api/v1/get_server_capabilities", url)
    try:
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
            models = json.load(answer)["supported_models"]
    except urllib.error.HTTPError as error:
        why = "the key is wrong" if error.code in (401, 403) else f"it answered {error.code}"
        raise UsageError(f"the Tinker server at {url}: {why}") from None
    except (OSError, ValueError, KeyError) as error:
        raise Unreachable(
            f"the Tinker server at {url} did not say which models it has: {error}; is it up? "
            "`agl tinker serve` starts one"
        ) from None
    known = {str(model.get("model_name")): model for model in models}
    if options.base_model not in known:
        raise UsageError(
            f"the Tinker server at {url} has no model {options.base_model!r}; it has {sorted(known)}"
        )
    model = known[options.base_model]
    for what in ("trainable", "sampleable"):
        if model.get(what) is False:
            raise UsageError(f"the Tinker server at {url}: its model {options.base_model!r} is not {what}")
    context = model.get("max_context_length")
    if context and options.max_len and options.max_len > context:
        raise UsageError(
            f"backend.options.max_len is {options.max_len}, and the Tinker server at {url} takes "
            f"{context} tokens"
        )
    return {"server": url, "model": options.base_model, **({"context": str(context)} if context else {})}
