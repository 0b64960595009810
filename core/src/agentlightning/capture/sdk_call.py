"""One model call in the agent's process: its caller, its endpoint, and its spans.

Invariants: a call ends once and makes one span for each choice; choice 0 has the span id that ``traceparent``
carried to the gateway. A span holds the ids only where no gateway records them, else only their digest.
"""

from __future__ import annotations

import base64
import copy
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import quote, urlsplit

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, ContextEntry, attached, current_attempt
from agentlightning.capture.delivery import (
    COUNTS,
    begin_call,
    deliver,
    identity_attributes,
    new_span,
    remember_response,
)
from agentlightning.capture.identity import caller_tags, parent_ids, selects_call
from agentlightning.capture.records import describe_error
from agentlightning.capture.sdk_response import ResponseChoice, ResponseReader
from agentlightning.keys import CONTEXT_KEY, PREFIX
from agentlightning.log_limit import limited
from agentlightning.types import LLM, Span, Tags, merge_tags
from agentlightning.types.arrays import pack_float32
from agentlightning.types.select import policy_for, with_role
from agentlightning.types.tokens import pack, tokens_digest

_LOG = limited(__name__)
_OPERATIONS = {
    "openai": {"/chat/completions": "chat", "/completions": "text_completion", "/responses": "chat"},
    "anthropic": {"/messages": "chat"},
}
"""SDK → suffixes of the paths of model calls → operation names."""
_LOOPBACK = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}

RETRIES = "agl.retries"
"""How many times the SDK sent the request again before this answer."""
LOGPROB_COUNT = "agl.logprob_count"
"""Number of logprobs received; an exact call has as many as ``agl.response_tokens``."""
CALL_ID = "agl.call_id"
"""The call that the gateway recorded, by the id of its response; empty for one of several choices."""
CURRENT_CALL: Final = ContextEntry["SDKCall"]("agl-sdk-call")
"""The call that the SDK is sending now."""


class SDKCall:
    """A model call in progress. ``retries`` is updated while the SDK sends it."""

    def __init__(
        self, context: AttemptContext, sdk: str, body: Mapping[str, Any], operation: str, gateway: bool
    ) -> None:
        self.sdk = sdk
        self.context, self.body, self.operation, self.gateway = context, body, operation, gateway
        self.tags: Tags = merge_tags(context.tags, caller_tags())
        self.trace_id, self.parent_id = parent_ids(context.attempt_id)
        self.span_id = secrets.token_hex(8)
        self.selected = selects_call(self.tags, self.span_id)
        if not gateway:  # a gateway sets the role of unnamed calls itself
            self.tags = with_role(self.tags)
        self.start = time.time()
        self.retries = 0
        self.response = ResponseReader()
        self.whole: Any = None
        self.ended = False
        self._close = begin_call(context.attempt_id, partial(self.end, complete=False))

    def add_chunk(self, chunk: Any) -> None:
        """Add a chunk of the answer. An unreadable one is counted, and never breaks the user's stream."""
        try:
            self.response.add(chunk)
        except Exception:
            COUNTS.add("wire-not-read")
            _LOG.warning("a chunk of a model's answer could not be read", exc_info=True)

    def add_whole(self, answer: Any) -> None:
        """Add the whole answer; adding it again (after the SDK's parser) changes nothing."""
        if self.whole is None:
            self.whole = answer
            self.add_chunk(answer)

    def end_unread(self) -> None:
        """End a call whose body the user reads himself, so that its ids are unknown here."""
        if not self.ended:
            COUNTS.add("wire-not-read")
            self.end()

    def end(self, error: BaseException | None = None, *, complete: bool = True) -> None:
        """Deliver the spans. Safe from any thread and from ``__del__``. ``complete``: the answer was read to
        its end."""
        if self.ended:
            return
        self.ended = True
        self._close()
        try:
            if self.response.response_id:
                remember_response(self.context.attempt_id, self.response.response_id, self.span_id)
            for index, choice in sorted(self.response.choices.items()) or [(0, ResponseChoice())]:
                deliver(self.context, self._span(index, choice, error, complete))
        except Exception:
            COUNTS.add("wire-error")
            _LOG.warning("a model call could not be recorded by the wire layer", exc_info=True)

    def _span(self, index: int, choice: ResponseChoice, error: BaseException | None, complete: bool) -> Span:
        first = index == min(self.response.choices, default=0)
        attributes = {
            **self._request_attributes(),
            **self._answer_attributes(index, choice, first),
            semconv.PARTIAL: None if error or self._finished(complete) else True,
            semconv.EXCEPTION_TYPE: type(error).__name__ if error else None,
            semconv.REFUSED: _refusal(error) if self.gateway else None,
        }
        span = new_span(
            self.context,
            semconv.CALL_SPAN,
            (self.trace_id, self.parent_id),
            attributes,
            span_id=self.span_id if first else None,
            start=self.start,
            error=describe_error(error) if error else None,
        )
        span.kind = "client"
        return span

    def _finished(self, complete: bool) -> bool:
        """Return whether the answer is whole: each choice of a stream had its finish reason. ``complete``:
        the stream was read to its end, so that no choice is missing.
        """
        if self.whole is not None:
            return True
        read, asked = self.response.choices.values(), self.body.get("n")
        every = complete or len(read) >= (asked if isinstance(asked, int) else 1)
        return every and all(choice.finish_reason for choice in read)

    def _request_attributes(self) -> dict[str, Any]:
        return {
            semconv.LAYER: "wire",
            **identity_attributes(self.context, self.tags),
            semconv.OPERATION_NAME: self.operation,
            semconv.PROVIDER_NAME: self.sdk,
            semconv.REQUEST_MODEL: str(self.body.get("model", "")),
            RETRIES: self.retries,
            **{f"gen_ai.request.{k}": v for k, v in self.body.items() if isinstance(v, bool | int | float)},
        }

    def _answer_attributes(self, index: int, choice: ResponseChoice, first: bool) -> dict[str, Any]:
        response, ids, logprobs = self.response, choice.ids, choice.logprobs
        prompt = choice.prompt_ids if choice.prompt_ids is not None else response.prompt_ids
        out: dict[str, Any] = {
            semconv.CHOICE: index,
            semconv.RESPONSE_ID: response.response_id,
            semconv.RESPONSE_MODEL: response.model,
            semconv.FINISH_REASONS: [choice.finish_reason] if choice.finish_reason else None,
            semconv.INPUT_TOKENS: response.prompt_tokens if first else None,
            semconv.OUTPUT_TOKENS: response.completion_tokens if first else None,
            semconv.PROMPT_COUNT: None if prompt is None else len(prompt),
            semconv.RESPONSE_COUNT: None if ids is None else len(ids),
            LOGPROB_COUNT: None if logprobs is None else len(logprobs),
        }
        content = not self.gateway or self.context.keeps_content  # else the gateway has it
        if self.gateway and content:
            out[CALL_ID] = (response.response_id or "") if len(response.choices) == 1 else ""
        try:
            if content:
                asked = self.body.get("messages", self.body.get("prompt", self.body.get("input")))
                out[semconv.INPUT_MESSAGES] = json.dumps(asked, ensure_ascii=False, default=str)
                out[semconv.OUTPUT_MESSAGES] = json.dumps([choice.message()], ensure_ascii=False)
            if prompt is not None and ids is not None:
                out[semconv.TOKENS_DIGEST] = tokens_digest(prompt, ids)
            if content:
                out[semconv.PROMPT_IDS] = _base64(prompt, pack)
                out[semconv.RESPONSE_IDS] = _base64(ids, pack)
                out[semconv.LOGPROBS] = _base64(logprobs, pack_float32)
        except (TypeError, ValueError):  # the engine sent a value that is no int32 or no number
            COUNTS.add("bad-ids")
        return out


def _refusal(error: BaseException | None) -> str | None:
    """Return the code, else the status, of an HTTP error; ``None`` if the error is no answer of a server.
    OpenAI's SDK has the code in an attribute, Anthropic's in the body.
    """
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return None
    code, body = getattr(error, "code", None), getattr(error, "body", None)
    if not code and isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        code = body["error"].get("code")
    return code if isinstance(code, str) and code else f"HTTP {status}"


def _base64(values: Sequence[Any] | None, pack: Callable[[Any], bytes]) -> str | None:
    return None if values is None else base64.b64encode(pack(values)).decode()


@contextmanager
def sending(call: SDKCall) -> Iterator[None]:
    """Make ``call`` the one that the SDK sends within the block. An error of the block ends the call."""
    try:
        with attached(CURRENT_CALL.set(call)):
            yield
    except BaseException as error:
        call.end(error)
        raise


def open_call(sdk: str, client: Any, options: Any) -> tuple[SDKCall, Any] | None:
    """Return the call that ``options`` describe and the options to send; ``None`` outside an attempt and for
    requests that are no model calls."""
    context = current_attempt()
    operation = operation_of(sdk, str(options.url)) if context else None
    if context is None or operation is None or options.method.lower() != "post":
        return None
    url = str(options.url)
    endpoint = url if "://" in url else str(client.base_url)
    body = {**_mapping(options.json_data), **_mapping(options.extra_json)}
    target = url if "://" in url else f"{endpoint.rstrip('/')}/{url.lstrip('/')}"
    call = SDKCall(context, sdk, body, operation, gateway=is_gateway(target, context.gateway))
    options = copy.copy(options)  # pydantic's shallow copy: the caller's options stay as they are
    if call.gateway:
        options.headers = with_identity(call, client, _mapping(options.headers))
    elif sdk == "openai" and "input" not in body and _wants_ids(context, endpoint):
        logprobs = (
            True if operation == "chat" else 0
        )  # completions: how many alternatives beside the token itself
        extra = {"return_token_ids": True, **({} if "logprobs" in body else {"logprobs": logprobs})}
        options.extra_json = {**extra, **_mapping(options.extra_json)}
    if callable(parser := options.post_parser):

        def parse(answer: Any) -> Any:
            call.add_whole(answer)  # before a parser that may refuse the answer
            return parser(answer)

        options.post_parser = parse
    return call, options


def is_gateway(endpoint: str, gateway: str | None) -> bool:
    """Return whether ``endpoint`` is the gateway or below it: same scheme, host, port and path. Azure's
    clients put ``/openai`` where the gateway's URL has ``/v1``.
    """
    if gateway is None:
        return False
    there, here = _origin(endpoint), _origin(gateway)
    bases = (f"{here[3]}/", f"{here[3].removesuffix('/v1')}/openai/")
    return there[:3] == here[:3] and f"{there[3]}/".startswith(bases)


@lru_cache(maxsize=256)
def _origin(url: str) -> tuple[str, str, int, str]:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    return parts.scheme.lower(), _LOOPBACK.get(host, host), port, parts.path.rstrip("/")


def operation_of(sdk: str, url: str) -> str | None:
    """Return the operation of a model call by the end of its path; ``None`` for other requests."""
    path = url.partition("?")[0].rstrip("/")
    return next((name for suffix, name in _OPERATIONS[sdk].items() if path.endswith(suffix)), None)


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def with_identity(call: SDKCall, client: Any, headers: dict[str, Any]) -> dict[str, Any]:
    """Add caller, attempt and span to the user's headers."""
    context = call.context
    headers[semconv.HEADER_ATTEMPT] = context.attempt_id
    headers["traceparent"] = headers[semconv.HEADER_TRACE] = f"00-{call.trace_id}-{call.span_id}-01"
    if call.tags:
        headers[semconv.HEADER_TAGS] = quote(json.dumps(call.tags, separators=(",", ":")), safe="")
    if policy := policy_for(context.policies, with_role(call.tags)):
        headers[semconv.HEADER_POLICY] = policy
    if not call.selected:
        headers[semconv.HEADER_SELECTED] = "0"
    if context.key and not _has_other_attempts_key(context.key, client, headers):
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {context.key}"
    return headers


def _has_other_attempts_key(key: str, client: Any, headers: Mapping[str, Any]) -> bool:
    """Return whether the request has another attempt's key. The key stays, and the gateway refuses it."""
    given = next((str(v) for name, v in headers.items() if name.lower() == "authorization"), "")
    presented = given.removeprefix("Bearer ").strip() or str(getattr(client, "api_key", None) or "")
    return presented.startswith(PREFIX) and presented not in (key, CONTEXT_KEY)


def _wants_ids(context: AttemptContext, endpoint: str) -> bool:
    """Return whether the attempt's resources list this endpoint with the sampling parameter
    ``return_token_ids``."""
    return any(
        isinstance(r, LLM)
        and r.sampling_parameters.get("return_token_ids")
        and _origin(r.endpoint) == _origin(endpoint)
        for r in context.resources.values()
    )
