"""Tests of the fabric simulator's Python side."""
