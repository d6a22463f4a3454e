"""What every room may use and nothing is below: units and texts."""
