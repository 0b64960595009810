"""An agent that looks things up: a real corpus, a real index, and questions that need two documents."""
