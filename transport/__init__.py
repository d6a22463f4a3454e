"""Decides nothing yet: the control plane of weft.

Never touches the native extension when imported.
"""
