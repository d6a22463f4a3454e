"""Tests that read damaged files: no crash, no hang, no memory without bound."""
