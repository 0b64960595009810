"""The network: its shape, forward passes, key-value cache, and sampling from logits."""
