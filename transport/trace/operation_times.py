"""When operations ran, as SQL that queries share."""

# By process and operation. network: from the start of the first channel to the end of the last one.
# kernel: ends when the last kernel's end was recorded; its length is measured by the GPU's clock.
OPERATION_TIMES = """
network AS (
  SELECT process, operation, min(begin_ns) AS begin_ns, max(end_ns) AS end_ns
  FROM channels WHERE operation IS NOT NULL GROUP BY ALL),
kernel AS (
  SELECT process, operation, max(time_ns) AS end_ns,
    max(time_ns) - TRY_CAST(max(gpu_stop_ns)::HUGEINT - min(gpu_start_ns) AS BIGINT) AS begin_ns
  FROM kernels WHERE operation IS NOT NULL AND gpu_stop_ns > 0 GROUP BY ALL)
"""
