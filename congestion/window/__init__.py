"""Decides nothing: one module here per shipped window policy.

Never touches anything but congestion.api and math.
"""
