"""Calls that continue each other become one training row."""
