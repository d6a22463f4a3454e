"""Tests of the network testbed of namespaces (`weft lab`)."""
