"""Decides nothing: one module here per shipped paths policy.

Never touches anything but congestion.api and math.
"""
