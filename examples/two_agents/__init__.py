"""Two agents of one LangGraph system: the weights of one are trained, the prompt of the other is tuned."""
