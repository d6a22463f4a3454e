"""Tests that the conformance suite finds faults, and that the shipped policies pass it."""
