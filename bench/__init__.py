"""The microbenchmarks: one module each, run as `python -m bench NAME`."""
