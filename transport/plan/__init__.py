"""Plans a job's traffic: which links its paths cross, and which ports keep its flows apart."""
