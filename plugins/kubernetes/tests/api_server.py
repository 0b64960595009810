"""An API server for tests: Jobs and pods of one namespace, and a kubelet that runs their commands here.

It answers as Kubernetes does where the controller looks: names are taken once (409), objects are checked by
the published schemas (422), every change has the next ``resourceVersion``, a watch goes on from one of them
or is told that it is gone (410). Tests make it busy (429), break its connections, and put pods out.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from aiohttp import web

VERSIONS = ("1.37", "1.32")
"""Of Kubernetes, whose schemas every object must satisfy."""
Manifest = dict[str, Any]
KINDS = {"jobs": ("batch/v1", "Job"), "pods": ("v1", "Pod"), "secrets": ("v1", "Secret")}


def validated(thing: Manifest) -> None:
    """Raise the validator's error if an object does not satisfy the schemas, unknown fields included."""
    for version in VERSIONS:
        kubernetes_validate.validate(thing, version, strict=True)


class ApiServer:
    """The server. ``secrets``: name → key → value; ``folder``: the working directory of all pods."""

    def __init__(self, folder: Path, secrets: Mapping[str, Mapping[str, str]]) -> None:
        self.folder, self.secrets = folder, secrets
        self.objects: dict[str, dict[str, Manifest]] = {"jobs": {}, "pods": {}, "secrets": {}}
        self.requests: Counter[str] = Counter()
        """Method and kind → requests; status → answers."""
        self.most_active = 0
        """Most pods that ran at a time."""
        self.busy = 0
        """Requests to come that are answered 429."""
        self.pending_seconds = 0.0
        """Seconds before a pod starts."""
        self.quota: int | None = None
        """Jobs that the namespace takes."""
        self.url = ""
        self._version = 1000
        self._oldest = 0
        self._log: list[tuple[int, str, str, Manifest]] = []
        self._news = asyncio.Condition()
        self._watches: set[web.StreamResponse] = set()
        self._pods: dict[str, asyncio.Task[None]] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._put_out: dict[str, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---------------------------------------------------------------------- tests' levers
    async def drop_watches(self) -> None:
        """Break every connection of a watch."""
        for response in [*self._watches]:
            request = response._req
            if request is not None and request.transport is not None:
                request.transport.abort()

    async def forget(self) -> None:
        """Forget all changes so far: a watch from before is told that its place is gone."""
        self._version += 1
        self._oldest = self._version
        async with self._news:
            self._news.notify_all()

    async def put_out(self, job: str, reason: str, message: str = "") -> None:
        """Kill a Job's pod: ``OOMKilled``, ``Evicted``, ``Deleted``, or a signal as ``SIGSEGV``."""
        [pod] = [name for name in self.objects["pods"] if name.startswith(job)]
        self._put_out[pod] = (reason, message)
        number = signal.Signals[reason] if reason.startswith("SIG") else signal.SIGKILL
        self._processes[pod].send_signal(number)

    def running(self) -> list[str]:
        """Return the Jobs whose containers run."""
        pods = self.objects["pods"].values()
        return [one["metadata"]["labels"]["job-name"] for one in pods if one["status"]["phase"] == "Running"]

    async def start_again(self, job: str) -> int:
        """Run a Job's command a second time, as a kubelet may, and return its exit status."""
        process = await self._spawn(self.objects["jobs"][job]["spec"]["template"]["spec"])
        return await process.wait()

    # ---------------------------------------------------------------------- serving
    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._gate])
        for kind, group in (("jobs", "/apis/batch/v1"), ("pods", "/api/v1"), ("secrets", "/api/v1")):
            place = f"{group}/namespaces/tests/{kind}"
            app.router.add_get(place, self._list_or_watch, name=f"{kind}-list")
            app.router.add_post(place, self._create, name=f"{kind}-create")
            app.router.add_delete(place + "/{name}", self._delete, name=f"{kind}-delete")
        return app

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        kind = request.path.split("/tests/")[-1].split("/")[0]
        self.requests[f"{request.method} {kind}"] += 1
        if request.headers.get("Authorization") != "Bearer the-kubeconfigs-token":
            return self._status(401, "Unauthorized", "Unauthorized")
        if self.busy > 0:
            self.busy -= 1
            answer = self._status(429, "TooManyRequests", "too many requests")
            answer.headers["Retry-After"] = "0"
            return answer
        response: web.StreamResponse = await handler(request)
        return response

    async def close(self) -> None:
        for task in [*self._pods.values(), *self._tasks]:
            task.cancel()
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*self._pods.values(), *self._tasks, return_exceptions=True)
        await self.drop_watches()

    def _status(self, code: int, reason: str, message: str) -> web.Response:
        self.requests[str(code)] += 1
        body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
        return web.json_response(body, status=code)

    async def _create(self, request: web.Request) -> web.Response:
        kind, body = _kind(request), await request.json()
        name = body["metadata"]["name"]
        if name in self.objects[kind]:
            return self._status(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        if kind == "jobs" and self.quota is not None and len(self.objects["jobs"]) >= self.quota:
            return self._status(403, "Forbidden", f"jobs.batch {name} is forbidden: exceeded quota: all")
        try:
            validated(body)
        except kubernetes_validate.ValidationError as error:
            return self._status(422, "Invalid", error.message)
        body["metadata"]["uid"] = f"uid-of-{name}"
        if kind == "secrets":
            await self._put(kind, body, "ADDED")
            return web.json_response(body, status=201)
        body["status"] = {}
        await self._put(kind, body, "ADDED")
        self._pods[name] = asyncio.create_task(self._run_job(name))
        return web.json_response(body, status=201)

    async def _delete(self, request: web.Request) -> web.Response:
        kind, name = _kind(request), request.match_info["name"]
        if name not in self.objects[kind]:
            return self._status(404, "NotFound", f"{kind} {name} not found")
        await self._remove("jobs", name)
        for secret in [*self.objects["secrets"].values()]:  # what the Job owns
            if any(one["uid"] == f"uid-of-{name}" for one in secret["metadata"]["ownerReferences"]):
                await self._remove("secrets", secret["metadata"]["name"])
        self._soon(self._stop_pods(name))
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _list_or_watch(self, request: web.Request) -> web.StreamResponse:
        kind = _kind(request)
        wanted = dict(part.split("=") for part in request.query.get("labelSelector", "").split(",") if part)
        if request.query.get("watch") == "true":
            return await self._watch(request, kind, wanted)
        everything = [one for one in self.objects[kind].values() if _labelled(one, wanted)]
        first, size = int(request.query.get("continue", 0)), int(request.query.get("limit", 500))
        meta = {"resourceVersion": str(self._version)}
        if first + size < len(everything):
            meta["continue"] = str(first + size)
        return web.json_response({"metadata": meta, "items": everything[first : first + size]})

    async def _watch(self, request: web.Request, kind: str, wanted: Mapping[str, str]) -> web.StreamResponse:
        seen = int(request.query["resourceVersion"])
        if seen < self._oldest:
            return self._status(410, "Expired", f"too old resource version: {seen}")
        response = web.StreamResponse()
        await response.prepare(request)
        self._watches.add(response)
        try:
            while True:
                if seen < self._oldest:
                    gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
                    await _event(response, "ERROR", gone)
                    self.requests["410"] += 1
                    return response
                for version, of, what, thing in [one for one in self._log if one[0] > seen]:
                    seen = version
                    if of == kind and _labelled(thing, wanted):
                        await _event(response, what, thing)
                mark = {"kind": "Job", "metadata": {"resourceVersion": str(seen)}}
                await _event(response, "BOOKMARK", mark)
                async with self._news:
                    await self._news.wait_for(lambda seen=seen: max(self._version, self._oldest) > seen)
        finally:
            self._watches.discard(response)

    # ---------------------------------------------------------------------- state
    async def _put(self, kind: str, thing: Manifest, what: str) -> None:
        self._version += 1
        thing["apiVersion"], thing["kind"] = KINDS[kind]
        thing["metadata"]["resourceVersion"] = str(self._version)
        self.objects[kind][thing["metadata"]["name"]] = thing
        await self._note(kind, what, thing)

    async def _remove(self, kind: str, name: str) -> None:
        if (thing := self.objects[kind].pop(name, None)) is not None:
            self._version += 1
            thing["metadata"]["resourceVersion"] = str(self._version)
            await self._note(kind, "DELETED", thing)

    async def _note(self, kind: str, what: str, thing: Manifest) -> None:
        self._log.append((self._version, kind, what, copy.deepcopy(thing)))
        async with self._news:
            self._news.notify_all()

    def _soon(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------------- kubelet
    async def _run_job(self, name: str) -> None:
        """Make the Job's pod, run it, and set the Job's condition."""
        job = self.objects["jobs"][name]
        limit = job["spec"].get("activeDeadlineSeconds")
        pod = await self._make_pod(job)
        try:
            async with asyncio.timeout(limit):
                await self._run_pod(pod)
        except TimeoutError:
            await self._stop_pods(name)
            await self._set_condition(name, "Failed", "DeadlineExceeded", "Job was active longer")
            return
        if pod["metadata"]["name"] not in self.objects["pods"] or pod["status"]["phase"] == "Failed":
            await self._set_condition(name, "Failed", "BackoffLimitExceeded", "Job has reached its limit")
        elif pod["status"]["phase"] == "Succeeded":
            await self._set_condition(name, "Complete", "CompletionsReached", "")

    async def _make_pod(self, job: Manifest) -> Manifest:
        template = copy.deepcopy(job["spec"]["template"])
        name = job["metadata"]["name"]
        labels = {**template["metadata"]["labels"], "job-name": name, "batch.kubernetes.io/job-name": name}
        meta = {"name": f"{name}-pod", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
        pod = {"metadata": meta, "spec": template["spec"], "status": {"phase": "Pending"}}
        await self._put("pods", pod, "ADDED")
        return pod

    async def _run_pod(self, pod: Manifest) -> None:
        image = pod["spec"]["containers"][0]["image"]
        for word in ("ImagePullBackOff", "InvalidImageName"):
            if image.startswith(word.lower()):
                await self._set_state(pod, "Pending", {"waiting": {"reason": word, "message": f"no {image}"}})
                await asyncio.Event().wait()
        await asyncio.sleep(self.pending_seconds)
        name = pod["metadata"]["name"]
        process = self._processes[name] = await self._spawn(pod["spec"])
        await self._set_state(pod, "Running", {"running": {}})
        self.most_active = max(self.most_active, len(self.running()))
        assert process.stdout is not None
        said = (await process.stdout.read()).decode()
        code = await process.wait()
        reason, message = self._put_out.get(name, ("", ""))
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed"}
        if code:
            ended["message"] = said[-2000:]
        if reason == "Deleted":
            await self._remove("pods", name)
            return
        if reason == "Evicted":
            pod["status"] |= {"reason": "Evicted", "message": message}
        elif reason == "OOMKilled":
            ended["reason"] = "OOMKilled"
        await self._set_state(pod, "Failed" if code else "Succeeded", {"terminated": ended})

    async def _spawn(self, spec: Manifest) -> asyncio.subprocess.Process:
        [container] = spec["containers"]
        command = [*container["command"]]
        assert command[0] == "agl"
        await self._wait_for_secrets(container)
        program = [sys.executable, "-c", "from _agl_main import main; main()", *command[1:]]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("AGL_", "KUBE"))}
        return await asyncio.create_subprocess_exec(
            *program,
            cwd=self.folder,
            env={**kept, "PYTHONPATH": str(self.folder), **self._environment(container)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    def _secret(self, name: str) -> Mapping[str, str]:
        if name in self.objects["secrets"]:
            found: Mapping[str, str] = self.objects["secrets"][name]["stringData"]
            return found
        return self.secrets[name]

    async def _wait_for_secrets(self, container: Manifest) -> None:
        """A container whose Secret is not there yet waits for it (CreateContainerConfigError)."""
        refs = [one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"] if "valueFrom" in one]
        async with self._news:
            await self._news.wait_for(lambda: {*refs} <= {*self.secrets, *self.objects["secrets"]})

    def _environment(self, container: Manifest) -> dict[str, str]:
        found = {}
        for one in container["env"]:
            if (ref := one.get("valueFrom", {}).get("secretKeyRef")) is not None:
                found[one["name"]] = self._secret(ref["name"])[ref["key"]]
            else:
                found[one["name"]] = one["value"]
        return found

    async def _stop_pods(self, job: str) -> None:
        """Tell a Job's pod to end, and kill it after its grace."""
        name = f"{job}-pod"
        pod, process = self.objects["pods"].get(name), self._processes.get(name)
        if process is not None and process.returncode is None and pod is not None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), pod["spec"]["terminationGracePeriodSeconds"])
            except TimeoutError:
                process.kill()
        await self._remove("pods", name)

    async def _set_state(self, pod: Manifest, phase: str, state: Manifest) -> None:
        if pod["metadata"]["name"] not in self.objects["pods"]:
            return
        pod["status"] |= {"phase": phase, "containerStatuses": [{"name": "runner", "state": state}]}
        await self._put("pods", pod, "MODIFIED")

    async def _set_condition(self, name: str, kind: str, reason: str, message: str) -> None:
        if (job := self.objects["jobs"].get(name)) is None:
            return
        job["status"]["conditions"] = [{"type": kind, "status": "True", "reason": reason, "message": message}]
        await self._put("jobs", job, "MODIFIED")


def _kind(request: web.Request) -> str:
    return str(request.match_info.route.name).partition("-")[0]


def _labelled(thing: Manifest, wanted: Mapping[str, str]) -> bool:
    found = thing["metadata"].get("labels", {})
    return all(found.get(key) == value for key, value in wanted.items())


async def _event(response: web.StreamResponse, kind: str, thing: Manifest) -> None:
    await response.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")


@asynccontextmanager
async def api_server(
    folder: Path, secrets: Mapping[str, Mapping[str, str]]
) -> AsyncIterator[tuple[ApiServer, Path]]:
    """Serve, and yield the server and a kubeconfig for it."""
    server = ApiServer(folder, secrets)
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig(server.url)))
    try:
        yield server, file
    finally:
        await server.close()
        await runner.cleanup()


def kubeconfig(url: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "tests"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "the-kubeconfigs-token"}}],
    }
