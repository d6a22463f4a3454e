"""Finds what weft can use on this host: drivers, RDMA ports, features of the kernel."""
