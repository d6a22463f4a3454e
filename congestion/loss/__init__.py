"""The shipped loss policies, one module each."""
