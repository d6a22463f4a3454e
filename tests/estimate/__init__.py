"""Tests of estimates: collectives, training steps, profiles of networks."""
