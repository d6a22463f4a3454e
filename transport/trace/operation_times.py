"""When operations ran, as SQL that queries share."""

# Two SQL tables with the begin and end of each operation at each process. network: from the start
# of the first NCCL channel to the end of the last one. kernel: ends when the end of the last GPU
# kernel was recorded; its length is measured by the GPU's clock.
OPERATION_TIMES = """
network AS (
  SELECT process, operation, min(begin_ns) AS begin_ns, max(end_ns) AS end_ns
  FROM channels WHERE operation IS NOT NULL GROUP BY ALL),
kernel AS (
  SELECT process, operation, max(time_ns) AS end_ns,
    max(time_ns) - TRY_CAST(max(gpu_stop_ns)::HUGEINT - min(gpu_start_ns) AS BIGINT) AS begin_ns
  FROM kernels WHERE operation IS NOT NULL AND gpu_stop_ns > 0 GROUP BY ALL)
"""
