"""The public API: endpoints, connections, memory, arrays of a GPU, and the knobs that set them.

Its names are imported from `transport`.
"""
