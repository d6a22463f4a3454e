"""Tests of the Python door over real sockets of this host."""
