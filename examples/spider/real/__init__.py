"""The spider agent with a pretrained model on real questions: by examples, then by what queries return."""
