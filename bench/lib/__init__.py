"""Code that benchmarks share: processes, traffic, statistics, reports."""
