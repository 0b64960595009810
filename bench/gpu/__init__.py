"""What can be said of a GPU without one, and what is run where one is."""
