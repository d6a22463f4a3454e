"""Tests that shipped policies reproduce the committed tables and traces exactly.

`make golden` rewrites the tables and traces; a change of one is a commit of its own.
"""
