"""OpenAI's Responses and Conversations, and Anthropic's Messages, translated to chat completions."""
