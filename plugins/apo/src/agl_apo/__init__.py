"""Prompt search: textual gradients with beam search (APO), reflective search (gepa), and ``Alternate``.

Invariant: a search is a function of its settings, its seed and facts that the store keeps. A search that was
killed walks the same path again and finds its facts: no candidate is scored twice, no answer is asked for
twice.
"""
