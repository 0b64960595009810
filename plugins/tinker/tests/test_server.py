"""The official client, unmodified, against the server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("tinker.types")

import tinker
from tinker import types

from agentlightning.types import UsageError
from agl_local.network.lora import Lora, adapt
from agl_local.policy.adapters import load_adapters
from agl_local.policy.folder import load_policy
from agl_tinker.export import export
from plugins.tinker.tests.running import Running

IDS = [5, 60, 70, 80, 90, 100]
ADAM = types.AdamParams(learning_rate=1e-2)


def datum(ids: list[int] = IDS) -> types.Datum:
    inputs: Any = {"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)}
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


def service(served: Running) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=served.url)


def trainer(service: tinker.ServiceClient, **more: Any) -> Any:
    return service.create_lora_training_client(base_model="tiny", **{"rank": 4, "seed": 1, **more}).result()


def loss(client: Any) -> float:
    return float(client.forward([datum()], "cross_entropy").result().metrics["loss:sum"])


def step(client: Any) -> float:
    """One step; the loss before it."""
    backward, made = client.forward_backward([datum()], "cross_entropy"), client.optim_step(ADAM)
    before = float(backward.result().metrics["loss:sum"])
    made.result()
    return before


def test_it_trains_and_says_what_it_is(served: Running) -> None:
    with service(served) as client:
        mine = trainer(client)
        info = mine.get_info()
        assert (info.model_name, info.is_lora, info.lora_rank) == ("tiny", True, 4)
        losses = [step(mine) for _ in range(6)]
        assert losses[-1] < losses[0] - 5
        [model] = tinker.RestClient(base_url=served.url).get_server_capabilities().result().supported_models
        assert (model.model_name, model.max_context_length, model.trainable) == ("tiny", 256, True)


def test_the_first_logprobs_are_the_policys(served: Running, folder: Path) -> None:
    with service(served) as client:
        told = (
            trainer(client).forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
        )
        sampler = client.create_sampling_client(base_model="tiny").result()
        prompt = sampler.compute_logprobs(types.ModelInput.from_ints(IDS)).result()
    with torch.no_grad():
        every = torch.log_softmax(load_policy(folder).model(torch.tensor([IDS]))[0], -1)
    wanted = [float(every[i, IDS[i + 1]]) for i in range(len(IDS) - 1)]
    assert list(told) == pytest.approx(wanted, abs=1e-5)
    assert prompt[0] is None and prompt[1:] == pytest.approx(wanted, abs=1e-5)


def test_adapters_do_not_meet(served: Running) -> None:
    with service(served) as one, service(served) as other:
        first, second, third = trainer(one), trainer(one, seed=2), trainer(other)
        before = loss(second)
        for _ in range(3):
            step(first)
        assert loss(second) == before == loss(third)
        assert loss(first) < before - 1


def test_samples_have_the_logprobs_of_their_weights(served: Running) -> None:
    with service(served) as client:
        mine = trainer(client)
        for _ in range(3):
            step(mine)
        sampler = mine.save_weights_and_get_sampling_client().result()
        step(mine)  # what was saved stays as it is
        asked = types.SamplingParams(max_tokens=12, temperature=1.0, seed=5)
        answer = sampler.sample(types.ModelInput.from_ints(IDS), 3, asked).result()
        again = sampler.sample(types.ModelInput.from_ints(IDS), 3, asked).result()
        assert [s.tokens for s in answer.sequences] == [s.tokens for s in again.sequences]
        assert len({tuple(s.tokens) for s in answer.sequences}) == 3
        assert len({s.sequence_id for s in (*answer.sequences, *again.sequences)}) == 6
        for one in answer.sequences:
            known = sampler.compute_logprobs(types.ModelInput.from_ints([*IDS, *one.tokens])).result()
            assert one.logprobs == pytest.approx(known[len(IDS) :], abs=1e-4)


def test_stops(served: Running) -> None:
    with service(served) as client:
        sampler = client.create_sampling_client(base_model="tiny").result()

        def ask(**more: Any) -> Any:
            params = types.SamplingParams(max_tokens=40, seed=3, **more)
            return sampler.sample(types.ModelInput.from_ints(IDS), 1, params).result().sequences[0]

        free = ask(stop=[])
        assert (free.stop_reason, len(free.tokens)) == ("length", 40)
        token = free.tokens[4]
        cut = ask(stop=[token])
        assert cut.tokens == free.tokens[: free.tokens.index(token) + 1] and cut.stop_reason == "stop"


def test_saved_states(served: Running) -> None:
    with service(served) as client:
        mine = trainer(client)
        step(mine), step(mine)
        path = mine.save_state("two").result().path
        wanted = [step(mine) for _ in range(3)]
    with service(served) as client:
        whole = client.create_training_client_from_state_with_optimizer(path).result()
        assert [step(whole) for _ in range(3)] == wanted
        bare = client.create_training_client_from_state(path).result()
        assert step(bare) == wanted[0] and step(bare) != wanted[1]  # Adam begins anew
        info = tinker.RestClient(base_url=served.url).get_weights_info_by_tinker_path(path).result()
        assert (info.base_model, info.lora_rank) == ("tiny", 4)


def test_a_custom_loss(served: Running) -> None:
    def square(
        data: list[types.Datum], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        return sum((one**2).sum() for one in logprobs), {}  # type: ignore[return-value]

    with service(served) as client:
        mine = trainer(client)
        before = mine.forward_backward_custom([datum()], square).result().metrics["loss:sum"]
        mine.optim_step(ADAM).result()
        assert mine.forward_backward_custom([datum()], square).result().metrics["loss:sum"] < before


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda c: c.forward_backward([datum()], "dro"), "the loss 'dro' is not here; there are cispo"),
        (
            lambda c: c.forward_backward([datum()], "ppo"),
            r"datum 0: the loss ppo needs loss_fn_inputs\['logprobs'\]",
        ),
        (
            lambda c: c.forward_backward([datum([5, 999])], "cross_entropy"),
            "target_tokens has ids outside 0..258",
        ),
        (lambda c: c.forward_backward([datum()], "cross_entropy", {"beta": 1.0}), "has no setting 'beta'"),
        (lambda c: c.save_state("../up"), "is no name for weights"),
    ],
)
def test_what_it_cannot_do_it_says(served: Running, make: Any, says: str) -> None:
    with service(served) as client:
        mine = trainer(client)
        before = loss(mine)
        with pytest.raises(tinker.RequestFailedError, match=says):
            make(mine).result()
        assert loss(mine) == before  # and goes on


def test_a_disk_that_is_full_fails_the_call(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with service(served) as client:
        mine = trainer(client)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("agl_tinker.server.models.write_state", full)
            with pytest.raises(tinker.RequestFailedError, match="No space left on device"):
                mine.optim_step(ADAM).result()
        assert step(mine) > step(mine)  # and goes on


def test_numbers_of_another_kind_are_refused(served: Running) -> None:
    with service(served) as client:
        mine = trainer(client)
        body = {"model_id": mine.model_id, "seq_id": 1, "adam_params": {"learning_rate": "much"}}
        asked = post(served.url, "optim_step", body)["request_id"]
        said = post(served.url, "retrieve_future", {"request_id": asked})
        assert said["category"] == "user" and "learning_rate" in said["error"]


def test_models_of_a_silent_session_leave_the_memory(served: Running) -> None:
    with service(served) as client:
        mine = trainer(client)
        step(mine)
        before = loss(mine)
        session = mine.model_id.partition(":")[0]

        async def forget(busy: bool) -> int:
            server = served.server
            model = await server.models.get(mine.model_id)
            model._sent += busy
            server._forget(session)
            model._sent -= busy
            assert (session in server._heard) == busy  # it is looked at again
            return len(server.models._open)

        assert served.call(forget(busy=True)) == 1
        assert served.call(forget(busy=False)) == 0
        assert loss(mine) == before


def test_another_base_is_refused(served: Running) -> None:
    with service(served) as client, pytest.raises(tinker.BadRequestError, match="there is 'tiny'"):
        client.create_lora_training_client(base_model="Qwen/Qwen3-8B").result()


def sampled(url: str, **more: Any) -> Any:
    body = {"prompt": {"chunks": [{"tokens": IDS}]}, "sampling_params": {"max_tokens": 4}, **more}
    return post(url, "asample", body)["request_id"]


def test_samples_without_a_number_are_questions_of_their_own(served: Running) -> None:
    session = post(served.url, "create_session", {})["session_id"]
    asked = {"session_id": session, "base_model": "tiny", "sampling_session_seq_id": 0}
    made = post(served.url, "create_sampling_session", asked)["sampling_session_id"]
    assert sampled(served.url, sampling_session_id=made) != sampled(served.url, sampling_session_id=made)
    again = [sampled(served.url, sampling_session_id=made, seq_id=1) for _ in range(2)]
    assert again[0] == again[1]


def test_a_sample_of_another_base_is_refused(served: Running) -> None:
    assert sampled(served.url, base_model="tiny")
    with pytest.raises(urllib.error.HTTPError) as refused:
        sampled(served.url, base_model="Qwen/Qwen3-8B")
    assert refused.value.code == 400 and "there is 'tiny'" in refused.value.read().decode()


@pytest.mark.parametrize(
    ("name", "address", "says"),
    [("../a", "http://127.0.0.1:9", "only plain names"), ("a", "file:///etc/hostname", "only http")],
)
def test_an_export_takes_no_file_from_elsewhere(
    folder: Path, tmp_path: Path, name: str, address: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        export(folder, {name: address}, tmp_path / "export", None)


def test_a_server_that_starts_again_goes_on(served: Running) -> None:
    """With gradients that no step has used yet, answers that nobody has fetched, and a sampling session."""
    with service(served) as client:
        reference, mine = trainer(client), trainer(client)
        step(reference), step(mine)
        sampler = mine.save_weights_and_get_sampling_client().result()
        asked = types.SamplingParams(max_tokens=8, seed=5)
        answer = sampler.sample(types.ModelInput.from_ints(IDS), 1, asked).result().sequences[0]
        for one in (reference, mine):
            one.forward_backward([datum(IDS[::-1])], "cross_entropy").result()
        served.restart()
        mine.optim_step(ADAM).result()
        reference.optim_step(ADAM).result()
        assert loss(mine) == loss(reference)
        assert (
            sampler.sample(types.ModelInput.from_ints(IDS), 1, asked).result().sequences[0].tokens
            == answer.tokens
        )


def post(url: str, path: str, body: Any, **headers: str) -> Any:
    asked = urllib.request.Request(
        f"{url}/api/v1/{path}", json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    )
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)


def test_a_call_that_is_sent_again_is_carried_out_once(served: Running) -> None:
    with service(served) as client:
        mine, other = trainer(client), trainer(client)
        for one in (mine, other):
            one.forward_backward([datum()], "cross_entropy").result()
        body = {"model_id": mine.model_id, "seq_id": 2, "adam_params": {"learning_rate": 0.01}}
        said = [post(served.url, "optim_step", body) for _ in range(3)]
        assert len({one["request_id"] for one in said}) == 1
        served.restart()
        post(served.url, "optim_step", body)
        other.optim_step(ADAM).result()
        mine._get_request_id()  # as if the client had sent it
        mine._turn_counter += 1
        assert loss(mine) == loss(other)


def test_calls_may_arrive_in_any_order(served: Running) -> None:
    with service(served) as client:
        mine = trainer(client)
        said = post(served.url, "save_weights", {"model_id": mine.model_id, "seq_id": 2, "path": "later"})
        step_1 = {"model_id": mine.model_id, "seq_id": 1, "adam_params": {}}
        post(served.url, "optim_step", step_1)
        got = post(served.url, "retrieve_future", {"request_id": said["request_id"]})
        assert got["path"] == f"tinker://{mine.model_id}/weights/later"


def test_an_adapter_leaves_in_the_format_of_peft(served: Running, folder: Path, tmp_path: Path) -> None:
    with service(served) as client:
        mine = trainer(client)
        step(mine)
        path = mine.save_weights_external("out").result().path
        urls = tinker.RestClient(base_url=served.url).get_external_weights_urls(path).result().urls
        told = mine.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
    merged = load_policy(export(folder, urls, tmp_path / "merged", served.url)).model
    with torch.no_grad():
        every = torch.log_softmax(merged(torch.tensor([IDS]))[0], -1)
    assert list(told) == pytest.approx([float(every[i, IDS[i + 1]]) for i in range(len(IDS) - 1)], abs=1e-5)
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((folder / name).read_bytes())
    export(bare, urls, tmp_path / "adapter", served.url)
    model = load_policy(folder).model
    adapt(model, Lora(rank=4, alpha=32.0), 0)
    load_adapters(model, tmp_path / "adapter")


@pytest.mark.parametrize(("headers", "status"), [({}, 401), ({"X-API-Key": "tml-wrong-0000000000000"}, 401)])
def test_a_token_is_wanted(folder: Path, tmp_path: Path, headers: dict[str, str], status: int) -> None:
    with Running(folder, tmp_path, token="tml-0123456789abcdef0123456789abcdef") as served:
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(served.url, "create_session", {}, **headers)
        assert refused.value.code == status
        assert post(served.url, "create_session", {}, **{"X-API-Key": served.options["token"]})["session_id"]


def test_a_web_page_is_refused(served: Running) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(served.url, "create_session", {}, Origin="http://elsewhere.example")
    assert refused.value.code == 403


@pytest.mark.parametrize("model", ["s-0000000000000000:train:0", "../../etc:train:0", ""])
def test_no_such_model(served: Running, model: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(served.url, "get_info", {"model_id": model})
    assert refused.value.code == 404
