"""Semantic Kernel: an agent with a plugin, and another that comments on its answer; whole and as a stream."""

import asyncio

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function


class WeatherPlugin:
    @kernel_function(description="Get the weather in a city.")
    def get_weather(self, city: str) -> str:
        return f"It is sunny in {city}."


def service() -> OpenAIChatCompletion:
    return OpenAIChatCompletion(ai_model_id="gpt-4o")


async def main() -> None:
    forecaster = ChatCompletionAgent(
        service=service(), name="forecaster", instructions="Use the tool.", plugins=[WeatherPlugin()]
    )
    critic = ChatCompletionAgent(service=service(), name="critic", instructions="Comment in a word.")
    answer = await forecaster.get_response(messages="What is the weather in Paris?")
    print(answer)
    async for piece in critic.invoke_stream(messages=str(answer)):
        print(piece, end="")
    print()


asyncio.run(main())
