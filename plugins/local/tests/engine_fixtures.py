"""What the engine's tests share: a trained tokenizer, a hermes-like template, tiny random networks."""

from __future__ import annotations

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from agl_local.generation.engine import Completion, Engine, Request
from agl_local.network.config import Arch, ModelConfig
from agl_local.network.sampling import Sampling
from agl_local.policy.folder import Policy, init_model
from agl_local.text.tokenizer import ChatTokenizer

TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Tools:' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' %}
    {%- if not loop.first %}{{- raise_exception('only the first message may be system') }}{%- endif %}
    {%- continue %}
{%- elif message.role == 'tool' %}
    {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
    {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- else %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {%- if call.function.arguments is string %}{{- call.function.arguments }}
        {%- else %}{{- call.function.arguments | tojson }}{%- endif %}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
LINES = [
    "The quick brown fox adds two numbers and gives the answer to the user.",
    '{"name": "add", "arguments": {"a": 1, "b": 22}} <tool_response> 23 </tool_response>',
    "### ANSWER: 42 ### Überraschung für älteren Größen, 温度 and naïve façades.",
]
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "a < b & 'c' – ü",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


def trained_tokenizer() -> ChatTokenizer:
    backend = Tokenizer(models.BPE())
    # As the Qwen family: transformers' AutoTokenizer puts these in place, whatever the file says.
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(LINES * 3, trainer)
    backend.add_tokens([AddedToken(text, special=False) for text in ("<tool_call>", "</tool_call>")])
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return ChatTokenizer(backend, chat_template=TEMPLATE, config=config)


def small_config(
    vocab: int, arch: Arch = "qwen2", tied: bool = False, eos: tuple[int, ...] = (), positions: int = 512
) -> ModelConfig:
    return ModelConfig(
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=vocab,
        rope_theta=10000.0,
        max_positions=positions,
        tied=tied,
        arch=arch,
        qkv_bias=arch == "qwen2",
        qk_norm=arch == "qwen3",
        eos_token_ids=eos,
        no_rope=(1,) if arch == "smollm3" else (),
    )


def small_policy(seed: int = 0, arch: Arch = "qwen2", tied: bool = False, std: float = 0.1) -> Policy:
    """Random weights, large enough that answers differ with the prompt and end tokens are rare."""
    torch.set_num_threads(1)
    tokenizer = trained_tokenizer()
    config = small_config(tokenizer.vocab_size, arch, tied, tokenizer.eos_ids)
    return Policy(init_model(config, seed, std=std).eval(), tokenizer, config)


def ask(engine: Engine, prompt: list[int], n: int = 1, **sampling: object) -> list[Completion]:
    return engine.submit(Request(prompt, Sampling(**sampling), n)).result(60)  # type: ignore[arg-type]


@torch.no_grad()
def logprobs_of(
    policy: Policy, prompt: list[int], tokens: list[int], temperature: float = 1.0
) -> list[float]:
    """The trainer's view: one plain forward over prompt and answer."""
    logits = policy.model(torch.tensor([[*prompt, *tokens]]))[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
