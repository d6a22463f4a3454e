"""Decides nothing: tests of congestion and of the policy compiler.

Never touches a network.
"""
