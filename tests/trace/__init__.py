"""Tests of trace files, the store that they are read into, and `weft trace`."""
