"""Decides that the conformance suite sees what it is for, and that what ships passes it."""
