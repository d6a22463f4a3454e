"""What benchmarks share: processes, traffic, statistics, reports. No benchmark is here."""
