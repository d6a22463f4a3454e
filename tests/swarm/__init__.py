"""Tests of `weft swarm`: planted defects, generating, minimising and replaying scenarios."""
