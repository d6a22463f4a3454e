"""Tests over verbs without RDMA hardware, in a virtual machine with two software RDMA devices."""
