"""Tests of the protocol core through the two-endpoint harness."""
