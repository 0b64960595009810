"""Text and token ids: tokenizer, chat template, tool calls, streamed text."""
