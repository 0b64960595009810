"""An agent that plays a published text game: TextWorld's cooking games, from a text of the facts it can
see.
"""
