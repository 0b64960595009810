"""The cluster's API: Jobs and pods of one namespace, created, deleted, listed and watched as plain mappings.

The library ``kubernetes-asyncio`` reads the kubeconfig or the pod's own account and keeps tokens fresh; its
thousand model classes are not used. A request is sent again until it is answered: the API server may be away
or busy (``Retry-After``) for any time, and a controller that waits loses nothing. What no waiting mends
(rights, an invalid manifest) is a UsageError.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from kubernetes_asyncio import client, config

from agentlightning.types import UsageError
from agl_kubernetes.pods import Manifest
from agl_kubernetes.settings import KubernetesOptions

log = logging.getLogger(__name__)
JOBS: Final = "/apis/batch/v1/namespaces/{namespace}/jobs"
PODS: Final = "/api/v1/namespaces/{namespace}/pods"
SECRETS: Final = "/api/v1/namespaces/{namespace}/secrets"
WATCH_SECONDS: Final = 240
"""Seconds after which the server ends a watch, which then goes on at the same place."""
SILENCE_SECONDS: Final = 60.0
"""Seconds beyond these without an event after which a connection counts as dead."""
REQUEST_SECONDS: Final = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0
_LONGEST_RETRY_AFTER: Final = 60.0
_BUSY: Final = frozenset({429, 500, 502, 503, 504})
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CONNECTION: Final = (aiohttp.ClientError, TimeoutError, ConnectionError)


class Gone(Exception):
    """The place of a watch is no longer known (410): list anew."""


class QuotaExceeded(Exception):
    """The namespace's quota takes no further object now."""


class Cluster:
    """One namespace of a cluster. ``counts``: ``api-retried``, requests that were sent again."""

    def __init__(self, api: client.ApiClient, namespace: str, counts: Counter[str]) -> None:
        self._api, self.namespace, self._counts = api, namespace, counts

    @classmethod
    async def connect(cls, options: KubernetesOptions, counts: Counter[str]) -> Cluster:
        """Connect as the pod's own account in a cluster, else as the kubeconfig says."""
        settings, namespace = client.Configuration(), options.namespace
        try:
            if "KUBERNETES_SERVICE_HOST" in os.environ and options.context is None:
                config.load_incluster_config(client_configuration=settings)
                namespace = namespace or _ACCOUNT.read_text(encoding="utf-8").strip()
            else:
                file = os.environ.get("KUBECONFIG")  # the library reads it once, when it is imported
                await config.load_kube_config(file, options.context, client_configuration=settings)
                namespace = namespace or _namespace_of(file, options.context)
        except (config.ConfigException, OSError) as error:
            raise UsageError(
                f"no cluster: {error}; set KUBECONFIG to a kubeconfig, or run in a pod with a service account"
            ) from None
        settings.connection_pool_maxsize = 0  # no limit: watches hold connections
        return cls(client.ApiClient(settings), namespace, counts)

    @property
    def host(self) -> str:
        """Return the host of the API server."""
        return urlsplit(self._api.configuration.host).hostname or ""

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def create(self, kind: str, body: Manifest) -> Manifest | None:
        """Create an object and return it as it is then; ``None``: one of its name is there already."""
        status, answer = await self._send("POST", kind, body=body, passes=(409,))
        if status == 409 and answer.get("reason") != "AlreadyExists":
            raise UsageError(f"the cluster refuses {body['metadata']['name']}: {answer.get('message')}")
        return answer if status != 409 else None

    async def delete(self, kind: str, name: str) -> None:
        """Delete an object and what it owns, if it is there."""
        await self._send("DELETE", kind, f"/{name}", {"propagationPolicy": "Background"}, passes=(404,))

    async def list(self, kind: str, selector: str) -> tuple[list[Manifest], str]:
        """Return the objects with these labels, and the place from which to watch them."""
        found: list[Manifest] = []
        query = {"labelSelector": selector, "limit": "500"}
        while True:
            status, answer = await self._send("GET", kind, query=query, passes=(410,))
            if status == 410:  # the list changed too much between two pages
                found, query = [], {"labelSelector": selector, "limit": "500"}
                continue
            found += answer.get("items") or []
            if not (more := answer["metadata"].get("continue")):
                return found, answer["metadata"]["resourceVersion"]
            query = {**query, "continue": more}

    async def watch(self, kind: str, selector: str, place: str) -> AsyncIterator[tuple[str, Manifest]]:
        """Yield events (ADDED, MODIFIED, DELETED, BOOKMARK) and their objects until the server ends the
        watch. Raise :class:`Gone`, or an error of the connection.
        """
        query = {
            "labelSelector": selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": place,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        limits = aiohttp.ClientTimeout(
            total=None, connect=REQUEST_SECONDS, sock_read=WATCH_SECONDS + SILENCE_SECONDS
        )
        async with await self._request("GET", kind, "", query, None, limits) as response:
            if response.status == 410:
                raise Gone
            if response.status in _BUSY:
                await asyncio.sleep(_retry_after(response) or 0.0)
                raise aiohttp.ClientPayloadError(f"the watch was answered {response.status}")
            await self._check(response, "GET", kind, ())
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    if event["object"].get("code") == 410:
                        raise Gone
                    raise aiohttp.ClientPayloadError(f"the watch ended: {event['object'].get('message')}")
                yield event["type"], event["object"]

    async def _send(
        self,
        method: str,
        kind: str,
        name: str = "",
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        passes: tuple[int, ...] = (),
    ) -> tuple[int, Manifest]:
        """Return status and answer; errors but those in ``passes`` are raised or waited for."""
        limits = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        pause = _FIRST_PAUSE
        while True:
            try:
                async with await self._request(method, kind, name, query, body, limits) as response:
                    if response.status not in _BUSY:
                        await self._check(response, method, kind, passes)
                        return response.status, await response.json()
                    wait, why = _retry_after(response), f"it answered {response.status}"
            except _CONNECTION as error:
                wait, why = None, f"{type(error).__name__}: {error}"
            self._counts["api-retried"] += 1
            log.warning("the cluster's API is not reached (%s); trying again", why)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0) if wait is None else wait)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _request(
        self,
        method: str,
        kind: str,
        name: str,
        query: Mapping[str, str] | None,
        body: Manifest | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._api.call_api(
            kind.format(namespace=self.namespace) + name,
            method,
            query_params=[*(query or {}).items()],
            header_params={"Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=limits,
        )
        return response

    async def _check(
        self, response: aiohttp.ClientResponse, method: str, kind: str, passes: tuple[int, ...]
    ) -> None:
        """Raise UsageError for a refusal that no waiting mends."""
        if response.status < 400 or response.status in passes:
            return
        try:
            message = str((await response.json()).get("message"))
        except (ValueError, *_CONNECTION):
            message = response.reason or ""
        if response.status == 403 and "exceeded quota" in message:
            raise QuotaExceeded(message)
        hint = ""
        if response.status in (401, 403):
            hint = "; `agl kubernetes manifests --mode jobs` prints the rights that are needed"
        what = f"{method} {kind.rsplit('/', 1)[-1]} in namespace {self.namespace}"
        raise UsageError(f"the cluster refuses {what} ({response.status}): {message}{hint}")


class Watched:
    """The present objects of a kind with the labels of ``selector``, kept up to date by :meth:`run`.

    ``changed`` is set at each change. ``counts``: ``watch-lost`` (connections that ended by an error) and
    ``watch-relisted`` (the place of a watch was no longer known).
    """

    def __init__(
        self, cluster: Cluster, kind: str, selector: str, changed: asyncio.Event, counts: Counter[str]
    ) -> None:
        self._cluster, self._kind, self._selector = cluster, kind, selector
        self._changed, self._counts = changed, counts
        self.objects: dict[str, Manifest] = {}
        """Name → object."""
        self.synced = asyncio.Event()
        """Set once the objects are known."""

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            found, place = await self._cluster.list(self._kind, self._selector)
            self.objects = {one["metadata"]["name"]: one for one in found}
            self.synced.set()
            self._changed.set()
            try:
                while True:
                    before = place
                    place = await self._follow(place)
                    pause = _FIRST_PAUSE if place != before else min(2 * pause, _LONGEST_PAUSE)
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            except Gone:
                self._counts["watch-relisted"] += 1

    async def _follow(self, place: str) -> str:
        """Apply the events after ``place`` until the watch ends; return the place from which to go on."""
        try:
            async for kind, thing in self._cluster.watch(self._kind, self._selector, place):
                place = thing["metadata"]["resourceVersion"]
                if kind == "BOOKMARK":
                    continue
                if kind == "DELETED":
                    self.objects.pop(thing["metadata"]["name"], None)
                else:
                    self.objects[thing["metadata"]["name"]] = thing
                self._changed.set()
        except (ValueError, *_CONNECTION) as error:
            self._counts["watch-lost"] += 1
            log.info("a watch of %s ended (%s); going on", self._kind, error)
        return place


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    text = response.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_RETRY_AFTER) if text.isdigit() else None


def _namespace_of(file: str | None, context: str | None) -> str:
    contexts, active = config.list_kube_config_contexts(file)
    chosen = next((one for one in contexts if one["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")
