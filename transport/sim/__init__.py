"""Fabrics of up to thousands of hosts, simulated: scenarios, runs, results, sweeps.

Never reads a clock, a socket or unseeded chance; the protocol that runs is the real one.
"""
