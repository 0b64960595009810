"""The official client of the Tinker API, as the driver uses it: asynchronous, and the same for its versions.

Whatever the client retries (a lost connection, a rate limit) it retries under the number that the call had,
so that a server carries it out once. Invariant: nothing here logs a key.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from numpy.typing import NDArray

from agentlightning.log_limit import limited
from agentlightning.types import UsageError
from agl_tinker.options import NOT_INSTALLED, Options, key

log = limited(__name__)
T = TypeVar("T")
SILENCE = 30.0
"""Seconds without an answer after which that is said; once a minute at most."""
Arrays = Mapping[str, NDArray[Any]]


class ServerError(UsageError, RuntimeError):
    """The server refused a call, or could not be reached, and what it said."""


def sdk() -> Any:
    """The module ``tinker``. Raises UsageError where it is not installed."""
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    try:
        import tinker
    except ImportError:
        raise UsageError(NOT_INSTALLED) from None
    return tinker


async def done(value: Any) -> Any:
    """The result of what the client returned: a future of one kind or another, or the result itself. The
    client tries again without a word, so that a long wait is said here.
    """
    future = value.future() if hasattr(value, "future") else value
    notice = asyncio.get_running_loop().call_later(SILENCE, _say_silence)
    try:
        if hasattr(future, "add_done_callback"):
            return await asyncio.wrap_future(future)
        return await asyncio.to_thread(future.result) if hasattr(future, "result") else future
    except asyncio.CancelledError:
        raise
    except Exception as error:
        raise ServerError(f"the Tinker server: {error}") from error
    finally:
        notice.cancel()


def _say_silence() -> None:
    log.warning(
        "the Tinker server has not answered a call for %g s: it is busy, or away. The client goes on asking",
        SILENCE,
    )


class Client:
    """A session on the server of ``options``. Methods that return futures have sent their call when they
    return, so that calls are carried out in the order of the methods.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._sdk = sdk()
        self._service: Any = None
        self._training: Any = None

    async def open(self) -> None:
        """Begin the session. Raises ServerError."""
        kept = {"base_url": self._options.url} if self._options.url else {}
        await self._call(lambda: self._begin(kept))

    async def create(self, seed: int) -> None:
        """A new adapter, or one that begins with the weights ``start_from``."""
        o = self._options
        if o.start_from is not None:
            await self.restore(o.start_from, optimizer=False)
            return
        self._training = await self._call(
            lambda: self._service.create_lora_training_client(
                base_model=o.base_model,
                rank=o.rank,
                seed=seed,
                train_attn=o.train_attn,
                train_mlp=o.train_mlp,
                train_unembed=o.train_unembed,
            )
        )

    async def restore(self, path: str, optimizer: bool = True) -> None:
        """The adapter saved at ``path``, with its optimizer."""
        make = "create_training_client_from_state" + ("_with_optimizer" if optimizer else "")
        self._training = await self._call(lambda: getattr(self._service, make)(path))

    async def base_sampler(self, path: str | None = None) -> Any:
        """What samples from the base, or from saved weights."""
        given = {"model_path": path} if path else {"base_model": self._options.base_model}
        return await self._call(lambda: self._service.create_sampling_client(**given))

    def forward(self, data: Sequence[Any]) -> Any:
        """A future of the logprobs of all targets."""
        return self._training.forward(list(data), "cross_entropy")

    def forward_backward(self, data: Sequence[Any], loss: str, config: Mapping[str, float]) -> Any:
        """A future of the logprobs of all targets; the gradients are added to those that are there."""
        return self._training.forward_backward(list(data), loss, dict(config) or None)

    def optim_step(self, lr: float) -> Any:
        """A future of the step's metrics."""
        o = self._options
        params = self._sdk.types.AdamParams(
            learning_rate=lr,
            beta1=o.betas[0],
            beta2=o.betas[1],
            eps=o.eps,
            weight_decay=o.weight_decay,
            grad_clip_norm=o.max_grad_norm or 0.0,
        )
        return self._training.optim_step(params)

    def sampler(self) -> Any:
        """A future of what samples from the weights after the calls so far."""
        submit = getattr(self._training, "save_weights_and_get_sampling_client_submit", None)
        return submit() if submit is not None else self._training.save_weights_and_get_sampling_client()

    async def save(self, name: str) -> str:
        """Save weights and optimizer; their address."""
        return str((await done(self._training.save_state(name))).path)

    async def adapter_files(self, name: str) -> dict[str, str]:
        """Save the adapter in PEFT's format; the address of each of its files, or of a tar of them."""
        if not hasattr(self._training, "save_weights_external"):  # an older client
            rest = await self._call(lambda: self._service.create_rest_client())
            path = (await done(self._training.save_weights_for_sampler(name))).path
            model, _, checkpoint = path.removeprefix("tinker://").partition("/")
            return {
                "adapter.tar.gz": str((await done(rest.get_checkpoint_archive_url(model, checkpoint))).url)
            }
        saved = await done(self._training.save_weights_external(name))
        kept = {"base_url": self._options.url} if self._options.url else {}
        rest = await self._call(lambda: self._sdk.RestClient(**kept, api_key=key()))
        return dict((await done(rest.get_external_weights_urls(saved.path))).urls)

    def datum(self, tokens: Sequence[int], inputs: Arrays) -> Any:
        """One sequence, position i of which predicts ``inputs["target_tokens"][i]``."""
        types = self._sdk.types
        return types.Datum(
            model_input=types.ModelInput.from_ints(list(tokens)),
            loss_fn_inputs={name: types.TensorData.from_numpy(array) for name, array in inputs.items()},
        )

    def sample(
        self, sampler: Any, prompt: Sequence[int], count: int, *, alternatives: int = 0, **params: Any
    ) -> Any:
        """A future of ``count`` answers. ``alternatives``: how many of each token are told with their
        logprobs. Raises ServerError where the client cannot ask for them.
        """
        types = self._sdk.types
        if alternatives and "topk_sample_logprobs" not in inspect.signature(sampler.sample).parameters:
            raise ServerError("this version of the client cannot ask for top_logprobs: install tinker 0.38")
        return sampler.sample(
            prompt=types.ModelInput.from_ints(list(prompt)),
            num_samples=count,
            sampling_params=types.SamplingParams(**params),
            **({"topk_sample_logprobs": alternatives} if alternatives else {}),
        )

    def prompt_logprobs(self, sampler: Any, tokens: Sequence[int]) -> Any:
        """A future of the logprob of each token but the first (some servers count the first, as ``None``)."""
        return sampler.compute_logprobs(self._sdk.types.ModelInput.from_ints(list(tokens)))

    async def close(self) -> None:
        """End the session, whose heartbeats would go on."""
        service, self._service = self._service, None
        if service is not None:
            if hasattr(service, "close"):
                await done(await asyncio.to_thread(service.close, "success"))
            else:
                await asyncio.to_thread(service.holder.close)

    def _begin(self, given: dict[str, Any]) -> None:
        self._service = self._sdk.ServiceClient(**given, api_key=key())
        _ = self._service.holder  # newer clients begin their session when it is first used

    async def _call(self, make: Callable[[], Any]) -> Any:
        """``make()`` in a thread, for it may block, and its result."""

        def quietly() -> Any:
            with warnings.catch_warnings():  # the client deprecates names that its older versions have alone
                for kind in (DeprecationWarning, FutureWarning):
                    warnings.simplefilter("ignore", kind)
                return make()

        try:
            made = await asyncio.to_thread(quietly)
        except UsageError:
            raise
        except Exception as error:
            where = self._options.url or "hosted"
            raise ServerError(f"the Tinker server ({where}): {error}") from error
        return await done(made)
