"""The means of the host that weft can use: drivers, RDMA ports, what the kernel allows."""
