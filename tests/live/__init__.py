"""Tests of rates and waits, of `weft top` and of `weft metrics`."""
