"""Tests of the protocol core through the rig."""
