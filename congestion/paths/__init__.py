"""The shipped path policies, one module each."""
