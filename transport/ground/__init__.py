"""The lowest package, which every other may use: units, texts, small statistics, TOML."""
