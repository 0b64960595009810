"""An agent that picks a meeting room with one tool, graded exactly; its prompt is searched."""
