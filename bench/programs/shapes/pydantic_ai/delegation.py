"""An agent that asks another one from its tool, with usage counted together."""

from pydantic_ai import Agent, RunContext, UsageLimits

selector = Agent("openai-chat:gpt-4o-mini", name="selector", instructions="Choose the best joke.")
writer = Agent("openai-chat:gpt-4o-mini", name="writer", output_type=list[str])


@selector.tool
async def make_jokes(ctx: RunContext[None], count: int) -> list[str]:
    """Write jokes."""
    return (await writer.run(f"Write {count} jokes.", usage=ctx.usage)).output


result = selector.run_sync("Tell me a joke.", usage_limits=UsageLimits(request_limit=8))
print(result.output, result.usage)
