"""The agent: it fills the prompt, lets the model list the rooms, and returns the grade of its choice."""

from __future__ import annotations

import json
from typing import Any, Final

from openai import AsyncOpenAI

import agentlightning as agl
from room_selector.rooms import Task, available, grade

FIRST: Final = (
    "Find a room on {date} at {time} for {duration_min} minutes, {attendees} attendees. Needs: {needs}. "
    "Accessible required: {accessible_required}."
)
"""The prompt that the search begins with: it says what is asked and by no word how a room is chosen."""
TURNS: Final = 3
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_rooms_and_availability",
        "description": "List the rooms: seats, equipment, accessibility, distance, bookings, free or not.",
        "parameters": {
            "type": "object",
            "properties": {
                "date": {"type": "string", "description": "YYYY-MM-DD"},
                "time": {"type": "string", "description": "HH:MM"},
                "duration_min": {"type": "integer", "description": "minutes"},
            },
            "required": ["date", "time", "duration_min"],
        },
    },
}


def use_tool(arguments: str) -> str:
    """Return the tool's answer as JSON; a mistake of the model is answered with an error."""
    try:
        given = json.loads(arguments)
        return json.dumps({"rooms": available(given["date"], given["time"], int(given["duration_min"]))})
    except (KeyError, TypeError, ValueError) as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


@agl.rollout
async def agent(task: Task, prompt_template: agl.PromptTemplate, resources: dict[str, Any]) -> float:
    """Return 1.0 if the model chose the right room, else 0.0."""
    llm: agl.LLM = resources.get("agent") or resources["llm"]
    messages: list[Any] = [
        {"role": "system", "content": "You are a scheduling assistant."},
        {"role": "user", "content": prompt_template.format(**task["task_input"])},
    ]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for _ in range(TURNS):
            answer = await client.chat.completions.create(
                model=llm.model,
                messages=messages,
                tools=[TOOL],  # type: ignore[list-item]
                temperature=0.0,
            )
            said = answer.choices[0].message
            if not said.tool_calls:
                return grade(said.content or "", task["expected_choice"])
            messages.append(said.model_dump(exclude_none=True))
            for call in said.tool_calls:
                result = use_tool(call.function.arguments)  # type: ignore[union-attr]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return 0.0
