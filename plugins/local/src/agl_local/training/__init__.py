"""The update: rows as tensors, losses, optimizer, and fidelity checks."""
