"""Geometry of what the pages draw as SVG: curves, timelines, forests. Templates write the elements."""
