"""Three libraries that make masks from JSON schemas: what they take, what they enforce, and what it costs.

Run ``python bench/grammar_libraries.py POLICY [--library NAME]`` where llguidance, xgrammar and outlines-core
are installed; POLICY is a model folder (``agl policy fetch smollm2``). Prints one JSON object. Times are CPU
milliseconds: the vocabulary once, then the compilation of each schema of ``TIMED``, and the mask of each
token of its text (mean, and the slowest). Each keyword of ``KEYWORDS`` has a text that fits and one that does
not: ``enforced`` takes the first and not the second, ``ignored`` takes both, ``refused`` is an error at
compilation, ``wrong`` is all else. A schema that takes over 25 seconds has ``no answer``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import queue
import statistics
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

from agl_local.text.tokenizer import ChatTokenizer

Schema = dict[str, Any]
LIMIT = 25
"""Seconds for one schema."""
TEXT, INT = {"type": "string"}, {"type": "integer"}


def closed(**properties: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


CITY = closed(name=TEXT, country={"type": "string", "enum": ["France", "Japan", "Kenya"]}, population=INT)
TIMED: list[tuple[Schema, str]] = [
    (closed(expression=TEXT), '{"expression":"12 * (3 + 4)"}'),
    (CITY, '{"name":"Nairobi","country":"Kenya","population":4397073}'),
    (
        closed(cities={"type": "array", "items": {"$ref": "#/$defs/city"}}) | {"$defs": {"city": CITY}},
        '{"cities":[{"name":"Lyon","country":"France","population":522228},'
        '{"name":"Kyoto","country":"Japan","population":1463723}]}',
    ),
    (
        closed(steps={"type": "array", "items": closed(explanation=TEXT, output=TEXT)}, answer=TEXT),
        '{"steps":[{"explanation":"Add both sides.","output":"8x = -30"}],"answer":"x = -3.75"}',
    ),
    ({"type": "object"}, '{"a":[1,2,{"b":null}],"c":"free text of some length, with a comma"}'),
]
KEYWORDS: dict[str, tuple[Schema, str, str]] = {
    "properties, required": (closed(a=INT, b=TEXT), '{"a":1,"b":"x"}', '{"a":1}'),
    "additionalProperties: schema": (
        {"type": "object", "additionalProperties": INT}, '{"k":1}', '{"k":"x"}'),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^x": INT}, "additionalProperties": False},
        '{"xy":1}', '{"y":1}'),
    "propertyNames": (
        {"type": "object", "propertyNames": {"pattern": "^a+$"}}, '{"aa":1}', '{"b":1}'),
    "minProperties, maxProperties": (
        {"type": "object", "minProperties": 1, "maxProperties": 1}, '{"a":1}', '{"a":1,"b":2}'),
    "dependentRequired": (
        {"type": "object", "properties": {"a": INT, "b": INT}, "dependentRequired": {"a": ["b"]}},
        '{"a":1,"b":2}', '{"a":1}'),
    "enum": ({"enum": ["x", 1]}, '"x"', '"y"'),
    "const": ({"const": "x"}, '"x"', '"y"'),
    "type: list": ({"type": ["string", "null"]}, "null", "1"),
    "anyOf": ({"anyOf": [INT, {"type": "null"}]}, "null", '"x"'),
    "oneOf, apart by a constant": (
        {"oneOf": [closed(k={"const": "a"}, v=INT), closed(k={"const": "b"}, v=TEXT)]},
        '{"k":"b","v":"x"}', '{"k":"a","v":"x"}'),
    "oneOf, overlapping": ({"oneOf": [INT, {"type": "number", "minimum": 5}]}, "3", "7"),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 5}]}, "3", "7"),
    "not": ({"type": "string", "not": {"const": "x"}}, '"y"', '"x"'),
    "if, then": (
        {"type": "object", "properties": {"a": INT, "b": INT}, "if": {"required": ["a"]},
         "then": {"required": ["b"]}}, '{"a":1,"b":2}', '{"a":1}'),
    "$ref, recursive": (
        {"$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"},
         {"type": "null"}]}}, "required": ["next"], "additionalProperties": False}}, "$ref": "#/$defs/n"},
        '{"next":{"next":null}}', '{"next":{"next":1}}'),
    "items, minItems, maxItems": (
        {"type": "array", "items": INT, "minItems": 1, "maxItems": 2}, "[1]", "[1,2,3]"),
    "prefixItems": (
        {"type": "array", "prefixItems": [INT, TEXT], "items": False, "minItems": 2}, '[1,"x"]', '["x",1]'),
    "contains": ({"type": "array", "contains": {"const": 1}}, "[2,1]", "[2]"),
    "uniqueItems": ({"type": "array", "items": INT, "uniqueItems": True}, "[1,2]", "[1,1]"),
    "minimum, maximum": ({"type": "integer", "minimum": 3, "maximum": 12}, "7", "13"),
    "exclusiveMinimum: number": ({"type": "number", "exclusiveMinimum": 0.5}, "0.75", "0.25"),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, "15", "16"),
    "minLength, maxLength": ({"type": "string", "minLength": 2, "maxLength": 3}, '"ab"', '"a"'),
    "pattern": ({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}, '"AB-12"', '"ab"'),
    "pattern, look-ahead": ({"type": "string", "pattern": "^(?!a)[a-z]+$"}, '"bc"', '"ab"'),
    "format: date": ({"type": "string", "format": "date"}, '"2026-11-22"', '"soon"'),
    "format: email": ({"type": "string", "format": "email"}, '"a@b.org"', '"soon"'),
    "format: uuid": (
        {"type": "string", "format": "uuid"}, '"8d3c0b6e-6f6b-4b9e-9c39-7d1b9f0f6a11"', '"soon"'),
}  # fmt: skip


class Library(Protocol):
    """One library over one vocabulary."""

    def compile(self, schema: Schema) -> Any: ...

    def accepts(self, grammar: Any, ids: list[int]) -> bool: ...

    def masks(self, grammar: Any, ids: list[int], tick: Callable[[], None]) -> None: ...


class LLGuidance:
    name = "llguidance"

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        from llguidance import LLMatcher

        from agl_local.text.grammar import GrammarCompiler

        self.matcher: Any = LLMatcher
        self.compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
        self.compiler.check("start: /a/")
        self.vocabulary = self.compiler._vocabulary
        self.eos = tokenizer.eos_ids[0]

    def compile(self, schema: Schema) -> Any:
        grammar = self.matcher(self.vocabulary, self.matcher.grammar_from_json_schema(schema), log_level=0)
        if grammar.is_error():
            raise ValueError(grammar.get_error())
        return grammar

    def accepts(self, grammar: Any, ids: list[int]) -> bool:
        state = grammar.deep_copy()
        return state.consume_tokens(ids) and state.is_accepting()

    def masks(self, grammar: Any, ids: list[int], tick: Callable[[], None]) -> None:
        state = grammar.deep_copy()
        for token in ids:
            state.compute_bitmask()
            state.consume_token(token)
            tick()


class XGrammar:
    name = "xgrammar"

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        import xgrammar

        self.x: Any = xgrammar
        size = tokenizer.vocab_size
        pieces = [tokenizer.backend.id_to_token(i) or "" for i in range(size)]
        info = xgrammar.TokenizerInfo(
            pieces, xgrammar.VocabType.BYTE_LEVEL, vocab_size=size, stop_token_ids=list(tokenizer.eos_ids)
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = xgrammar.allocate_token_bitmask(1, size)
        self.eos = tokenizer.eos_ids[0]

    def compile(self, schema: Schema) -> Any:
        return self.compiler.compile_json_schema(json.dumps(schema), strict_mode=False)

    def accepts(self, grammar: Any, ids: list[int]) -> bool:
        state = self.x.GrammarMatcher(grammar)
        return all(state.accept_token(i) for i in [*ids, self.eos])

    def masks(self, grammar: Any, ids: list[int], tick: Callable[[], None]) -> None:
        state = self.x.GrammarMatcher(grammar)
        for token in ids:
            state.fill_next_token_bitmask(self.bits)
            state.accept_token(token)
            tick()


class OutlinesCore:
    name = "outlines-core"

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        import outlines_core
        from outlines_core.json_schema import build_regex_from_schema

        self.o: Any = outlines_core
        self.regex = build_regex_from_schema
        words: dict[bytes, list[int]] = {}
        for i in range(tokenizer.vocab_size):
            if not tokenizer.is_special(i) and tokenizer.token_bytes(i):
                words.setdefault(tokenizer.token_bytes(i), []).append(i)
        self.vocabulary = outlines_core.Vocabulary(tokenizer.eos_ids[0], words)

    def compile(self, schema: Schema) -> Any:
        return self.o.Index(self.regex(json.dumps(schema)), self.vocabulary)

    def accepts(self, grammar: Any, ids: list[int]) -> bool:
        guide = self.o.Guide(grammar)
        try:
            for token in ids:
                guide.advance(token)
        except Exception:
            return False
        return bool(guide.is_finished())

    def masks(self, grammar: Any, ids: list[int], tick: Callable[[], None]) -> None:
        guide = self.o.Guide(grammar)
        for token in ids:
            guide.get_tokens()
            guide.advance(token)
            tick()


def keyword(library: Library, tokenizer: ChatTokenizer, case: tuple[Schema, str, str]) -> str:
    schema, right, wrong = case
    try:
        grammar = library.compile(schema)
    except BaseException as error:  # a panic of a Rust library is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return "refused"
    said = (
        library.accepts(grammar, tokenizer.encode(right)),
        library.accepts(grammar, tokenizer.encode(wrong)),
    )
    return {(True, False): "enforced", (True, True): "ignored"}.get(said, "wrong")


def answered(work: Callable[[], Any]) -> Any:
    """What ``work`` returns, in a process of its own; None if that takes over ``LIMIT`` seconds."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=lambda: results.put(work()))
    process.start()
    try:
        return results.get(timeout=LIMIT)
    except queue.Empty:
        return None
    finally:
        process.kill()
        process.join()


def timed(library: Library, schema: Schema, ids: list[int]) -> tuple[float, list[float]]:
    """CPU milliseconds of the compilation, and of each mask."""
    began = time.process_time()
    grammar = library.compile(schema)
    times = [time.process_time()]
    library.masks(grammar, ids, lambda: times.append(time.process_time()))
    return 1000 * (times[0] - began), [1000 * (b - a) for a, b in itertools.pairwise(times)]


def measure(kind: Any, tokenizer: ChatTokenizer) -> dict[str, Any]:
    began = time.process_time()
    library = kind(tokenizer)
    vocabulary = time.process_time() - began
    found = [answered(lambda s=s, t=t: timed(library, s, tokenizer.encode(t))) for s, t in TIMED]
    masks = [one for result in found if result is not None for one in result[1]]
    said = {
        name: answered(lambda case=case: keyword(library, tokenizer, case)) or "no answer"
        for name, case in KEYWORDS.items()
    }
    return {
        "version": version(kind.name),
        "vocabulary_ms": round(1000 * vocabulary, 1),
        "compile_ms": [None if result is None else round(result[0], 2) for result in found],
        "mask_ms_mean": round(statistics.mean(masks), 4),
        "mask_ms_max": round(max(masks), 3),
        "masks": len(masks),
        "counts": dict(Counter(said.values())),
        "keywords": {name: result for name, result in said.items() if result != "enforced"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("policy")
    parser.add_argument("--library", help="only this one")
    given = parser.parse_args()
    tokenizer = ChatTokenizer.load(given.policy)
    kinds = [k for k in (LLGuidance, XGrammar, OutlinesCore) if given.library in (None, k.name)]
    found = {kind.name: measure(kind, tokenizer) for kind in kinds}
    print(json.dumps({"vocabulary": tokenizer.vocab_size, "keywords": len(KEYWORDS), **found}, indent=1))


if __name__ == "__main__":
    main()
