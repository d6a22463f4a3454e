"""Tests of the xdp datapath between two network namespaces joined by a veth pair."""
