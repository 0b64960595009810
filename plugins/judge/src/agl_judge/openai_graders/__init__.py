"""OpenAI's graders, from their documented JSON (https://developers.openai.com/api/docs/guides/graders)."""
