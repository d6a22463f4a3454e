"""Estimates: how long communication takes, and how much of it computation hides."""
