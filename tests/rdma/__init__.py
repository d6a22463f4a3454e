"""A guest with two RDMA devices made of software, for the tests that need verbs and no hardware."""
