"""Tests of the policies in congestion/ and of `weft policy try`, without a network."""
