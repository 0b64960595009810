"""The engine in a thread of this process: the same server and routes as ``EngineProcess``, for tests and
debuggers.

It shares the interpreter and torch's threads with everything else here, so it is no choice for speed.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from agl_local.generation.engine import Engine, PauseMode
from agl_local.generation.loop import EngineLoop
from agl_local.generation.request import EngineError
from agl_local.http.app import create_app, serve
from agl_local.network.lora import Lora
from agl_local.policy.folder import Policy
from agl_local.policy.shared import Handover, MappedWeights, SharedWeights


def cores_of(deterministic: bool) -> int | None:
    """Cores for torch in the thread of such an engine; None: as torch is set."""
    return 1 if deterministic else None


class EngineThread:
    """Serves a copy of ``policy`` on loopback; the interface that the driver needs of ``EngineProcess``.
    Quantised matrices are not copied.

    ``keep``, ``lora``, ``loop``, ``deterministic``: see ``engine.Engine``; the last on one core
    (:func:`cores_of`), so that it does not depend on torch's setting.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        name: str = "policy",
        slots: int = 64,
        max_len: int | None = None,
        version: int = 0,
        deterministic: bool = False,
        keep: bool = True,
        lora: Lora | None = None,
        loop: EngineLoop | None = None,
        weights: SharedWeights | None = None,
        token: str | None = None,
    ) -> None:
        self._own_weights = weights is None
        self._token = token
        self.weights = weights or SharedWeights(str(policy.model.dtype).removeprefix("torch."))
        self.engine = Engine(
            policy,
            keep=keep,
            lora=lora,
            slots=slots,
            max_len=max_len,
            name=name,
            version=version,
            threads=cores_of(deterministic),
            deterministic=deterministic,
            loop=loop,
        )
        self._mapped: MappedWeights | None = None
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready: Future[str] = Future()
        self._thread = threading.Thread(target=self._main, name=f"engine-server-{name}", daemon=True)
        self._started = False

    def start(self) -> str:
        """Serve; returns the address, ``http://127.0.0.1:port``."""
        if self._started:
            raise EngineError("this engine thread has been started already")
        self._started = True
        self._thread.start()
        self.address = self._ready.result(timeout=60)
        return self.address

    def update(self, handover: Handover, version: int, mode: PauseMode = "drain") -> int:
        """Serve what :attr:`weights` published; returns the version that is now served."""
        if self._mapped is None:
            self._mapped = MappedWeights(self.weights.files)
        self.engine.make_room()
        return self.engine.submit_shared(self._mapped.take(handover), version, mode).result()

    def close(self, timeout: float = 10.0) -> None:
        """Stop serving. Idempotent."""
        if self._own_weights:
            self.weights.close()
        self.engine.close(timeout)
        if self._started and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout)
        if not self._loop.is_running():
            self._loop.close()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
                return
            raise

    async def _serve(self) -> None:
        app = create_app({self.engine.name: self.engine}, token=self._token, open_metrics=True)
        runner, address = await serve(app)
        self._ready.set_result(address)
        try:
            await self._stop.wait()
        finally:
            await runner.cleanup()
