"""Tests of the report of a job: its numbers, its page, the command."""
