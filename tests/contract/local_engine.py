"""The local engine under a policy of random weights that calls the contract's tool.

Its vocabulary has one token for the whole tool call, and its chat template ends a prompt by one of two marks:
a tool may be called, or an answer is due. Four axes of the embeddings belong to them, so that the tool call,
and then the end, are almost certain; what is said otherwise is noise of some twenty bytes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache

import torch
from agl_testing.contract.script import ARGUMENTS, TOOL
from aiohttp import web
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agentlightning.types import Call
from agl_local.generation.engine import Engine
from agl_local.http.app import create_app, serve
from agl_local.network.config import ModelConfig
from agl_local.policy.folder import Policy, init_model
from agl_local.text.grammar import GrammarCompiler, unpack_bits
from agl_local.text.tokenizer import ChatTokenizer

# As a grammar writes JSON: a strict tool's call may have no other white space.
CALL = f'<tool_call>\n{{"name": "{TOOL}", "arguments": {json.dumps(json.loads(ARGUMENTS))}}}\n</tool_call>'
MARKS = ("<|im_start|>", "<|im_end|>", "<act>", "<say>")
LENGTH = 16384
LOUD = 20.0
"""How far a token's axis stands out of the noise."""
SPEAKING = 3
"""The axis of every token that is said."""
TEMPLATE = """\
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content if message.content is string else (message.content or '') | tojson }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{{- '<|im_start|>assistant\\n' }}
{{- '<act>' if tools and messages[-1].role != 'tool' else '<say>' }}
"""


def tokenizer() -> ChatTokenizer:
    """Bytes, four marks, and the tool call."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={text: place for place, text in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(MARKS))
    backend.add_tokens([AddedToken(CALL, special=False)])
    return ChatTokenizer(backend, chat_template=TEMPLATE, config={"eos_token": "<|im_end|>"})


@cache
def policy() -> Policy:
    """Random weights, but for what follows ``<act>``, the tool call and the first word of an answer."""
    torch.set_num_threads(1)
    words = tokenizer()
    config = ModelConfig(
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=words.vocab_size,
        rope_theta=10000.0,
        max_positions=LENGTH,
        eos_token_ids=words.eos_ids,
    )
    model = init_model(config, 0, std=0.1).eval()
    ids = {text: words.backend.token_to_id(text) for text in (*MARKS, CALL)}
    embed, head = model.model.embed_tokens.weight, model.lm_head.weight
    with torch.no_grad():
        embed[:, :4], head[:, :4] = 0.0, 0.0
        embed[:, SPEAKING] = LOUD
        head[list(ids.values()), SPEAKING] = -2.0  # no marks in what is said …
        head[ids["<|im_end|>"], SPEAKING] = 0.5  # … but its end, after some twenty bytes
        for axis, (text, after) in enumerate({"<act>": CALL, CALL: "<|im_end|>", "<say>": None}.items()):
            embed[ids[text], :4] = 0.0
            embed[ids[text], axis] = LOUD
            head[list(ids.values()), axis] = -2.0
            if after is not None:
                head[ids[after], axis] = 2.5
    return Policy(model, words, config)


class LocalEngine:
    """The engine behind its HTTP face, which counts the chats that it answered."""

    def __init__(self) -> None:
        self.url = ""
        self._answered = 0

    def answered(self) -> int:
        """How many."""
        return self._answered

    @web.middleware
    async def count(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Hand on, and count."""
        response = await handler(request)
        self._answered += request.path.endswith("/chat/completions") and response.status == 200
        return response


@asynccontextmanager
async def served() -> AsyncIterator[LocalEngine]:
    """The policy, served under the name ``policy``."""
    counted = LocalEngine()
    with Engine(policy(), slots=4, max_len=LENGTH, name="policy") as engine:
        app = create_app({"policy": engine}, admin_token="contract")
        app.middlewares.append(counted.count)
        runner, address = await serve(app)
        counted.url = f"{address}/v1"
        try:
            yield counted
        finally:
            await runner.cleanup()


@torch.no_grad()
def worst_gap(policy: Policy, calls: Sequence[Call]) -> float:
    """The trainer's view: one plain forward over each prompt and answer, against what was recorded; tokens
    that a call's grammar forbids count as minus infinity.
    """
    worst, grammars = 0.0, GrammarCompiler(policy.tokenizer, policy.config.vocab_size)
    for call in calls:
        logits = policy.model(torch.tensor([[*call.prompt_ids, *call.response_ids]]))
        logits = logits[0, len(call.prompt_ids) - 1 : -1].float()
        if call.grammar is not None:
            allowed = unpack_bits(grammars.bits(call.grammar, call.response_ids), logits.shape[1])
            logits = logits.masked_fill(~allowed, float("-inf"))
        logprobs = torch.log_softmax(logits, dim=-1)
        found = logprobs.gather(1, torch.tensor(call.response_ids)[:, None])[:, 0]
        worst = max(worst, float((found - torch.tensor(call.logprobs)).abs().max()))
    return worst
