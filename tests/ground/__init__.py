"""Tests of what every room uses: units, texts, statistics, TOML."""
