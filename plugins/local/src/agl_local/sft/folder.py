"""The folder of a fine-tuned policy: Hugging Face layout, and a model card that says how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agl_local.policy import adapters
from agl_local.policy.export import check_export, export_policy
from agl_local.policy.files import write_folder
from agl_local.policy.folder import Policy
from agl_local.sft.chats import ChatSet
from agl_local.sft.finetune import SftReport, SftSettings

CARD = "README.md"


@dataclass(frozen=True)
class Parent:
    """The policy that was fine-tuned."""

    name: str
    address: str
    """What `agl policy fetch` takes to get it: a name of its catalogue, or a folder."""
    licence: str
    source: str
    digest: str
    """sha256 of its parameters."""


def check_output(folder: str | Path) -> Path:
    """Return the absolute path of an output folder. Raise FileExistsError if it holds anything else than an
    earlier policy or adapter.
    """
    return check_export(folder, {CARD, *adapters.FILES})


def write_finetuned(
    policy: Policy,
    folder: str | Path,
    parent: Parent,
    data: ChatSet,
    settings: SftSettings,
    report: SftReport,
) -> Path:
    """Write ``policy`` and its card to ``folder``, whole or not at all; an earlier one there is replaced.

    Of a policy that was trained with ``lora`` that is the adapter alone, rounded to the precision in which
    the weights beside it were.
    """
    card = model_card(parent, data, settings, report)
    if settings.lora is None:
        return export_policy(policy, folder, {CARD: card})

    def fill(draft: Path) -> None:
        about = {"base_model_name_or_path": parent.address}
        adapters.save_adapters(policy.model, draft, policy.model.dtype, about, parent.digest)
        (draft / CARD).write_text(card, encoding="utf-8")

    return write_folder(check_output(folder), fill)


def model_card(parent: Parent, data: ChatSet, settings: SftSettings, report: SftReport) -> str:
    """Return the card, a Markdown text with the metadata block of the Hugging Face hub."""
    over = {"parent's matrices, while training": settings.quantize} if settings.quantize else {}
    facts: dict[str, Any] = {
        "parent": parent.name,
        "parent's source": parent.source,
        "parent's parameters (sha256)": parent.digest,
        **over,
        "data": data.source,
        "data (sha256)": data.sha256,
        "chats": report.chats,
        "chats left out, over max_len": report.too_long,
        "trained tokens per epoch": report.tokens,
        "trained parameters": f"{report.parameters:,}",
        "steps": report.steps,
        "loss, first and last steps": f"{report.loss_first:.4f}, {report.loss:.4f}",
    }
    if report.val_losses:
        facts["validation loss, before and after each epoch"] = ", ".join(
            f"{x:.4f}" for x in report.val_losses
        )
    head = ["---", f"base_model: {json.dumps(parent.name)}", f"license_name: {json.dumps(parent.licence)}"]
    head += ["tags: [sft, agentlightning]", "---", ""]
    head += [
        f"# {parent.name}, fine-tuned",
        "",
        "Supervised fine-tuning of all answers in the data (`agl sft`). The parent's licence is: "
        f"{parent.licence}.",
        "",
    ]
    return "\n".join([*head, *_table(facts), "", *_table(shown(settings)), ""])


def shown(settings: SftSettings) -> dict[str, Any]:
    """Return the settings as JSON."""
    found: dict[str, Any] = msgspec.to_builtins(settings)
    return found


def _table(facts: Mapping[str, Any]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]
