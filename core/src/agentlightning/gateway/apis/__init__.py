"""One module for each API that agents speak: chat completions, Responses, Messages, and their streams."""
