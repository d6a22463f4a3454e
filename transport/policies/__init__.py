"""Choosing policies, recording what they saw, and running them again on it."""
