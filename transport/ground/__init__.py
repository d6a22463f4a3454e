"""What every room may use and nothing is below: units, texts, small statistics, TOML."""
