"""Model calls of the openai and anthropic SDKs, recorded with the engine's own token ids."""
