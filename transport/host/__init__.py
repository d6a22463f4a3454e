"""What the host has that weft can use: drivers, RDMA ports, and what the kernel allows."""
