"""Agents of two frameworks whose every answer has a form, and the small policy that they train."""
