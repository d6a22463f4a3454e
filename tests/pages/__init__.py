"""Tests of the pages of results."""
