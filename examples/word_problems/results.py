"""The table of the README: what ``make svamp-real`` printed, and the scripts, which play again each time.

python bench/record.py svamp_real -- python examples/word_problems/demo.py
python -m word_problems.results          (in examples/)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from word_problems.demo import baselines

HERE = Path(__file__).resolve().parent
RESULT = HERE.parents[1] / "bench" / "results" / "svamp_real.json"
README = HERE / "README.md"
ROWS = {
    "random_operator": "first two numbers in order, random operator",
    "common_operator": "first two numbers in order, the training split's commonest operator (`-`)",
    "larger_first": "the same, the larger number first",
    "linear": "a linear classifier of the words, trained on the training split, no model",
    "base": "SmolLM2-135M-Instruct, four solved examples, greedy",
    "sft": "fine-tuned on the training split, greedy",
    "sft_rl": "fine-tuned, then by reward, greedy",
    "oracle": "oracle (gold expression)",
}
"""Rows of the table: key → text."""
_MARKED = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end -->)", re.DOTALL)


def markdown(result: Mapping[str, Any]) -> str:
    """Return the table of the last line of ``demo.py``, with the settings and the seconds below."""
    svamp, gsm8k = result, result["gsm8k_one_step"]
    scripts = baselines(None)
    lines = [f"| | SVAMP, test (n = {svamp['n']}) | GSM8K, one step (n = {gsm8k['n']}) |", "|---|---|---|"]
    for key, text in ROWS.items():
        of = scripts.get(key) or {"svamp": _trained(svamp, key), "gsm8k": _trained(gsm8k, key)}
        lines.append(f"| {text} | {_cell(of['svamp'])} | {_cell(of['gsm8k'])} |")
    sft, seconds, validation = result["sft_settings"], result["seconds"], result["validation"]
    losses = " → ".join(f"{loss:.3f}" for loss in sft["val_losses"])
    lines += [
        "",
        f"Intervals are of 95 %. `make svamp-real`, seed {result['seed']}: {sft['chats']} chats, "
        f"{sft['epochs']} epochs at learning rate {sft['lr']:g}, validation loss {losses}; on the validation "
        f"split {validation['sft']:.3f} before and {validation['sft_rl']:.3f} after {result['rl_steps']} "
        f"steps by reward. {result['calls_exact']:,} of {result['calls']:,} calls are exact. Fine-tuning "
        f"took {seconds['sft']:.0f} s, training by reward {seconds['rl']:.0f} s, evaluations "
        f"{seconds['evaluations']:.0f} s.",
    ]
    if svamp["ci"]["sft_rl"][0] <= svamp["sft"]:
        lines += ["", "Reward adds nothing to fine-tuning that these intervals can tell."]
    return "\n".join(lines) + "\n"


def filled(text: str, result: Mapping[str, Any]) -> str:
    """Return the README ``text`` with the table of ``result`` between its marks."""
    table = markdown(result)
    found, count = _MARKED.subn(lambda match: table, text)
    if count != 1:
        raise ValueError("the README needs the marks <!-- results --> and <!-- end -->, once")
    return found


def _trained(figures: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {"reward": figures[key], "ci": figures["ci"][key]}


def _cell(scored: Mapping[str, Any]) -> str:
    low, high = scored["ci"]
    return f"{scored['reward']:.3f} ({low:.2f}–{high:.2f})"


if __name__ == "__main__":
    kept = json.loads(RESULT.read_text(encoding="utf-8"))["result"]
    README.write_text(filled(README.read_text(encoding="utf-8"), kept), encoding="utf-8")
