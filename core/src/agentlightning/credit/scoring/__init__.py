"""Rewards to one number per call."""
