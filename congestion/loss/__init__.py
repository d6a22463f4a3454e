"""Decides nothing: one module here per shipped loss policy.

Never touches anything but congestion.api and math.
"""
