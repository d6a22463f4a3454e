"""Tests of the Python API over real sockets of this host."""
