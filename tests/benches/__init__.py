"""Tests of the benchmarks and examples: tiny runs, whole documents."""
