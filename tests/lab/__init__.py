"""Tests of the lab of namespaces."""
