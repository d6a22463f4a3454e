"""Swarm tests: planted defects, the generator, the shrinker, replays."""
