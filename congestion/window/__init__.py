"""The shipped window policies, one module each."""
