"""What an XLA program communicates, and what computation hides of it."""
