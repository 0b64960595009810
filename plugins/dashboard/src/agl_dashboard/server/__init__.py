"""The web server: who may look, what a browser may do with a page, and what changed."""
