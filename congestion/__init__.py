"""Decides nothing: congestion is imported by its modules, `congestion.api` first.

Never touches anything outside the standard library.
"""
