"""Examples that are in the wheel, too: jobs to try weft with, without a GPU."""
