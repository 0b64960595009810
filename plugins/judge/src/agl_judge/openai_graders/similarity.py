"""The metrics of ``text_similarity``, by the libraries that others use for them; each is from 0 to 1.

``cosine`` asks a model of OpenAI for embeddings, and ``meteor`` needs WordNet, which nltk downloads: neither
can be reproduced here, and both are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from agentlightning.types import UsageError

INSTALL = (
    "pip install -c constraints.txt ./core ./plugins/trackers ./plugins/audit ./plugins/cluster "
    "./plugins/programs './plugins/judge[similarity]'"
)
REFUSED = {
    "cosine": "it compares embeddings of text-embedding-3-large, which only OpenAI serves",
    "meteor": "it needs the data of WordNet, which nltk downloads and no package holds",
}


def _fuzzy(module: Any, text: str, reference: str) -> float:
    return float(module.ratio(text, reference)) / 100.0


def _bleu(module: Any, text: str, reference: str) -> float:
    return float(module.sentence_bleu(text, [reference]).score) / 100.0


def _gleu(module: Any, text: str, reference: str) -> float:
    return float(module.sentence_gleu([reference.split()], text.split()))


def _rouge(kind: str) -> Callable[[Any, str, str], float]:
    def measure(module: Any, text: str, reference: str) -> float:
        return float(module.RougeScorer([kind], use_stemmer=False).score(reference, text)[kind].fmeasure)

    return measure


METRICS: dict[str, tuple[str, Callable[[Any, str, str], float]]] = {
    "fuzzy_match": ("rapidfuzz.fuzz", _fuzzy),
    "bleu": ("sacrebleu", _bleu),
    "gleu": ("nltk.translate.gleu_score", _gleu),
    **{f"rouge_{n}": ("rouge_score.rouge_scorer", _rouge(f"rouge{n}")) for n in range(1, 6)},
    "rouge_l": ("rouge_score.rouge_scorer", _rouge("rougeL")),
}
"""Metric → the module that it needs, and what measures by it."""


def metric(name: str) -> Callable[[str, str], float]:
    """Return what measures ``(text, reference)``. Raise :class:`UsageError` for a metric that cannot be."""
    if name in REFUSED:
        raise UsageError(f"evaluation_metric {name!r}: {REFUSED[name]}")
    if name not in METRICS:
        raise UsageError(f"evaluation_metric {name!r}: it is one of {', '.join(METRICS)}")
    place, measure = METRICS[name]
    try:
        module = import_module(place)
    except ImportError:
        package = place.partition(".")[0].replace("_", "-")
        raise UsageError(f"evaluation_metric {name!r} needs {package}: {INSTALL}") from None
    return lambda text, reference: measure(module, text, reference)
