"""Guided choices that one pass decides: the logits of every token that any allowed answer can need.

Token by token, an answer of k tokens takes k passes of one row each, and a network is slowest at few rows.
Here a prompt and the beginnings of its answers are a trie that is computed once, for all samples that are
asked the same. Such samples need no slot; the prompt's keys and values go to an idle one, for the next turn
of the conversation. Invariant: probabilities and draws are those of decoding, to float32's rounding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentlightning.types.tokens import WIDTH, pack
from agl_local.generation.confined import Logits
from agl_local.generation.request import Sample
from agl_local.generation.slots import SlotTable
from agl_local.generation.stats import Stats
from agl_local.network.kv import KVCache
from agl_local.network.model import CausalLM
from agl_local.network.sampling import allowed_next
from agl_local.network.sending import sent_list
from agl_local.trie.forward import Keep, read_states
from agl_local.trie.nodes import batches, plant_paths

# Longer prompts go through the cache: the next turn of their conversation may need them again.
_SHORT = 512
# Tokens of all answers of one request up to which they are computed whether they are drawn or not.
_MOST = 256
# Nodes of one pass: what a core's cache holds.
_NODES = 1024
# Requests whose logits are kept, for samples of the same group that come later.
_KEPT = 1024
AT_ONCE = _KEPT // 2
"""Samples that ``logits`` takes at a time: none of their tables is dropped before their last token."""

Choices = tuple[tuple[int, ...], ...]
Key = tuple[bytes, Choices]
"""Packed prompt and choices."""
Table = dict[tuple[int, ...], dict[int, float]]
"""What has been drawn so far → allowed next token → its logit."""


class ChoiceTables:
    """The tables of one engine's latest requests; used by its thread only."""

    def __init__(self, model: CausalLM, table: SlotTable, stats: Stats, eos_ids: Sequence[int]) -> None:
        self._model = model
        self._slots = table
        self._stats = stats
        self._eos_ids = eos_ids
        self._known: OrderedDict[Key, Table] = OrderedDict()

    def serves(self, sample: Sample) -> bool:
        """Whether ``logits`` decides ``sample``: a fresh choice, most of whose prompt is not cached."""
        s = sample.sampling
        if s.guided_choice is None or s.penalised or s.logit_bias or sample.tokens:
            return False
        if len(sample.prompt) > _SHORT or sum(map(len, s.guided_choice)) > _MOST:
            return False
        if (sample.packed, s.guided_choice) in self._known:
            return True
        return 2 * self._slots.best(sample.packed)[1] < len(sample.prompt)

    def logits(self, samples: Sequence[Sample]) -> Logits:
        """Next-token logits of ``samples``, for which ``serves`` held when they had no token yet."""
        fresh: dict[Key, Sample] = {}
        for sample in samples:
            known = (key := _key(sample)) in self._known or key in fresh
            self._count(sample, known)
            if not known:
                fresh[key] = sample
        self._compute(fresh)
        rows = [self._known[_key(s)][tuple(s.tokens)] for s in samples]
        for sample in samples:
            self._known.move_to_end(_key(sample))
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        ids = sorted({token for row in rows for token in row})
        values = [[row.get(token, float("-inf")) for token in ids] for row in rows]
        return Logits(sent_list(self._model.device, values), ids)

    def forget(self) -> None:
        """Drop all tables: the weights have changed."""
        self._known.clear()

    def _count(self, sample: Sample, known: bool) -> None:
        if sample.admitted:
            return
        sample.admitted = True
        sample.reused = len(sample.prompt) if known else 0
        self._stats.prompt_tokens += len(sample.prompt)
        self._stats.reused_tokens += sample.reused
        self._stats.prefix_hits += known

    def _compute(self, fresh: Mapping[Key, Sample]) -> None:
        """Make the tables of ``fresh``, of which each sample has its prompt kept if a slot is idle."""
        tables = {key: _table(key[1], self._eos_ids) for key in fresh}
        asked = [(key, prefix) for key in fresh for prefix, row in tables[key].items() if len(row) > 1]
        sequences = [key[0] + pack(prefix) for key, prefix in asked]
        unkept = dict(fresh)
        for part in batches(sequences, _NODES):
            keeping = [unkept.pop(asked[i][0], None) for i in part]
            rows = [tables[key][prefix] for key, prefix in (asked[i] for i in part)]
            self._pass([sequences[i] for i in part], rows, keeping)
        self._known.update(tables)

    def _pass(
        self, sequences: list[bytes], rows: list[dict[int, float]], keeping: list[Sample | None]
    ) -> None:
        """Put the logits after each of ``sequences`` into its row, the prompts of ``keeping`` into slots."""
        lasts = [torch.tensor([len(s) // WIDTH - 1]) for s in sequences]
        trie, at, paths = plant_paths(sequences, lasts)
        device = self._model.device
        kept = [(s, path) for s, path in zip(keeping, paths, strict=True) if s is not None]
        kept = kept[: self._slots.idle]
        keep = self._keeper(kept) if kept else None
        states = read_states(self._model, trie.to(device), keep)[at.to(device)]
        ids = sorted({token for row in rows for token in row})
        values = self._model.logits(states, sent_list(device, ids)).float().tolist()
        self._stats.steps += 1
        for row, logits in zip(rows, values, strict=True):
            row.update((token, value) for token, value in zip(ids, logits, strict=True) if token in row)
        for sample, _ in kept:
            self._slots.filled([sample])
            self._slots.release(sample)

    def _keeper(self, kept: list[tuple[Sample, Tensor]]) -> Keep:
        """What writes the keys and values of each sample's prompt, the beginning of its path, to a slot."""
        cache = self._slots.cache
        assert isinstance(cache, KVCache)
        nodes, places = [], []
        for sample, path in kept:
            self._slots.admit(sample, None, 0)
            nodes.append(path[: len(sample.prompt)])
            places.append(cache.begin(sample.slot, len(sample.prompt)))
        node, place = torch.cat(nodes).to(self._model.device), torch.cat(places)

        def keep(layer: int, keys: Tensor, values: Tensor) -> None:
            cache.write(layer, place, torch.cat((keys[node], values[node]), dim=1))

        return keep


def _key(sample: Sample) -> Key:
    assert sample.sampling.guided_choice is not None
    return sample.packed, sample.sampling.guided_choice


def _table(choices: Choices, eos_ids: Sequence[int]) -> Table:
    """Every beginning of the answers that something may follow; a token without alternative has logit 0."""
    prefixes = {choice[:length] for choice in choices for length in range(len(choice) + 1)}
    following = {prefix: allowed_next(choices, prefix, eos_ids) for prefix in prefixes}
    return {prefix: dict.fromkeys(allowed, 0.0) for prefix, allowed in following.items() if allowed}
