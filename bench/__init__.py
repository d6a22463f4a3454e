"""Decides nothing: one module here per microbenchmark, each with its own main.

Never touches private modules of what it measures.
"""
