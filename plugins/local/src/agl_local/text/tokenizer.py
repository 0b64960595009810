"""Text to token ids and back, with the chat template, from a Hugging Face tokenizer folder and without
transformers.

Invariants: ``render`` gives the text of transformers' ``apply_chat_template``; ``decode_token`` gives each
token's very bytes, so that the bytes of a response concatenate to its text also where a character spans
tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel

from agl_local.network.config import ConfigError, as_ids, read_json
from agl_local.text.cores import HERMES
from agl_local.text.form import Form
from agl_local.text.rendering import TemplateError
from agl_local.text.syntax import CallSyntax
from agl_local.text.template import ChatTemplate, Message

TEMPLATE_FILE = "chat_template.jinja"
"""File of a model folder; it has precedence over the template in tokenizer_config.json."""
_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTokenizer:
    """A ``tokenizers.Tokenizer`` with its special tokens, end tokens and chat template.

    ``tool_template``: the template of requests with tools, for a model that has one apart (``tool_use``).
    """

    def __init__(
        self,
        backend: Tokenizer,
        *,
        chat_template: str | None = None,
        tool_template: str | None = None,
        eos_ids: Sequence[int] = (),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.backend = backend
        self.config: dict[str, Any] = dict(config or {})
        self.special = {
            name: _token_text(self.config[name]) for name in _TOKEN_NAMES if self.config.get(name) is not None
        }
        own = [self._id_of(self.special["eos_token"])] if "eos_token" in self.special else []
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys([*own, *eos_ids]))
        self.template = ChatTemplate(chat_template, self.special) if chat_template else None
        self.tool_template = ChatTemplate(tool_template, self.special) if tool_template else None
        self.byte_level = isinstance(backend.decoder, ByteLevel)
        self._special_ids = frozenset(i for i, t in backend.get_added_tokens_decoder().items() if t.special)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, path: str | Path) -> ChatTokenizer:
        """Read tokenizer.json, tokenizer_config.json, chat template and end tokens of a model folder."""
        path = Path(path)
        file = path / "tokenizer.json"
        if not file.exists():
            raise FileNotFoundError(f"{file}: a model folder needs this file (the fast tokenizer's form)")
        config = read_json(path / "tokenizer_config.json", optional=True)
        eos: list[int] = []
        for name in ("generation_config.json", "config.json"):
            eos.extend(as_ids(read_json(path / name, optional=True).get("eos_token_id")))
        template, tool_template = _find_templates(path, config)
        return cls(
            Tokenizer.from_file(str(file)),
            chat_template=template,
            tool_template=tool_template,
            eos_ids=eos,
            config=config,
        )

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json (which holds the chat template)."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(path / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self.config}
        config.pop("chat_template", None)
        if self.template is not None:
            config["chat_template"] = self.template.source
        if self.template is not None and self.tool_template is not None:
            named = {"default": self.template, "tool_use": self.tool_template}
            config["chat_template"] = [{"name": k, "template": t.source} for k, t in named.items()]
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (path / "tokenizer_config.json").write_text(text, encoding="utf-8")

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens of the vocabulary → their ids."""
        return {self.backend.id_to_token(i) or "": i for i in sorted(self._special_ids)}

    def is_special(self, token: int) -> bool:
        return token in self._special_ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes that ``token`` stands for; empty for an id outside the vocabulary."""
        known = self._bytes.get(token)
        if known is None:
            piece = self.backend.id_to_token(token)
            known = b"" if piece is None else self._piece_bytes(token, piece)
            self._bytes[token] = known
        return known

    def decode_token(self, token: int) -> tuple[str, bytes]:
        """Text and bytes of one token; a part of a character has the replacement character as its text."""
        raw = self.token_bytes(token)
        return raw.decode("utf-8", errors="replace"), raw

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt text of a conversation, in the form that the template wants (``template.form``).
        Arguments of calls that the template writes as JSON stand in the text as they are.

        ``variables`` are further template variables (``enable_thinking`` …). Raises TemplateError.
        """
        template = self._template_for(tools)
        if template is None:
            raise TemplateError(
                "this tokenizer has no chat template: use completions, or add one to the model folder"
            )
        return template.render(messages, tools, add_generation_prompt, variables)

    @property
    def form(self) -> Form:
        """The form that the template of requests with tools wants."""
        template = self._template_for(True)
        return Form(problem="there is no chat template") if template is None else template.form

    @property
    def syntax(self) -> CallSyntax:
        """How the policy writes calls: as its template does. Where that shows none, in the hermes form."""
        return self.form.syntax or HERMES

    def is_hidden(self, token: int) -> bool:
        """Whether ``token`` has no text in an answer: special tokens, but for those that mark calls."""
        return token in self._hidden_ids

    @cached_property
    def _hidden_ids(self) -> frozenset[int]:
        marks = self.syntax.marks
        return frozenset(i for i in self._special_ids if (self.backend.id_to_token(i) or "") not in marks)

    def _template_for(self, tools: object) -> ChatTemplate | None:
        return self.tool_template if tools and self.tool_template is not None else self.template

    def apply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """``encode(render(…))``; the template writes its special tokens itself."""
        return self.encode(self.render(messages, tools, add_generation_prompt, **variables))

    def _id_of(self, piece: str) -> int:
        token = self.backend.token_to_id(piece)
        if token is None:
            raise ConfigError(f"tokenizer_config.json names the token {piece!r}, which tokenizer.json lacks")
        return int(token)

    def _piece_bytes(self, token: int, piece: str) -> bytes:
        if self.byte_level:
            # As the library's ByteLevel decoder: all characters in the byte alphabet, or the piece as it is.
            if all(char in _BYTE_OF for char in piece):
                return bytes(_BYTE_OF[char] for char in piece)
            return piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        if self.is_special(token):
            return piece.encode()
        return piece.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where printable, else the next free code point from
    256.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(hidden)})
    return alphabet


_BYTE_OF = _byte_alphabet()


def _token_text(value: Any) -> str:
    """Special tokens of tokenizer_config.json are a string or an object with ``content``."""
    if isinstance(value, AddedToken):
        return str(value.content)
    return str(value["content"]) if isinstance(value, Mapping) else str(value)


def _find_templates(path: Path, config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The template, and the one for tools if there is one apart.

    Newer folders keep them in files of their own, older ones inside tokenizer_config.json, as transformers
    writes them.
    """
    file, tool_file = path / TEMPLATE_FILE, path / "additional_chat_templates" / "tool_use.jinja"
    if file.exists():
        tool_use = tool_file.read_text(encoding="utf-8") if tool_file.exists() else None
        return file.read_text(encoding="utf-8"), tool_use
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        if "default" not in named:
            raise ConfigError(f"{path}: chat_template has {sorted(named)}, but none called 'default'")
        return named["default"], named.get("tool_use")
    return template, None
