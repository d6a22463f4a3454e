"""Tests of `weft swarm`: planted defects, the generator, the minimiser, replays."""
