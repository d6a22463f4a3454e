"""Tests diagnosis: rules on simulated faults, the command."""
