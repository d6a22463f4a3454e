"""The shipped credit policies, one module each."""
