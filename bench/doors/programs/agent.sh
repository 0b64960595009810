#!/bin/sh
# A program for Agent Lightning 1.0: it knows three variables, and what `env_map` gave it.
set -e
post() {
  curl -sS --fail -H "Authorization: Bearer $AGL_KEY" -H "Content-Type: application/json" -d "$2" "$1"
}
text=$(printf '%s' "$QUESTION" | awk '{gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); printf "%s%s", (NR > 1 ? "\\n" : ""), $0}')
expression='{"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}'
tool='{"type": "function", "function": {"name": "calculate", "description": "Calculate the value of an arithmetic expression.", "parameters": '$expression'}}'
messages='[{"role": "system", "content": "Use the calculator."}, {"role": "user", "content": "'$text'"}]'
answer=$(post "$AGL_OPENAI_BASE_URL/chat/completions" '{"model": "auto", "messages": '"$messages"', "tools": ['"$tool"']}')
case $answer in
  *"$EXPRESSION"*) value=1.0 ;;
  *) value=0.0 ;;
esac
post "$AGL_EVENT_URL" '{"event_type": "note", "data": {"calls": 1}}' >&2
post "$AGL_EVENT_URL" '{"event_type": "reward", "data": {"value": '$value'}}' >&2
echo "posted $value"
