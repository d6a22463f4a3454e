"""Tests that shipped policies reproduce the committed tables and traces exactly.

`make golden` rewrites the tables and traces; changes to them are committed separately.
"""
