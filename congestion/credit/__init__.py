"""Decides nothing: one module here per shipped credit policy.

Never touches anything but congestion.api and math.
"""
