"""Forward passes over a trie of token sequences, in which every equal beginning is computed once."""
