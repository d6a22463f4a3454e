"""The lowest package, which every other may import: units, text, TOML, output files, version."""
