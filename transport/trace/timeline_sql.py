"""The queries of a timeline: one for each kind of events."""

from __future__ import annotations

from dataclasses import dataclass

from transport.trace.tables import PATHS_NAMED


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of events.

    sql: its parameters are the processes, the communicators (NULL: all), and the time span in
    which events begin.
    order: the columns by which rows are sorted.
    """

    name: str
    sql: str
    order: str = "process, begin_ns"


_ASKED = """
WITH asked AS (
  SELECT $1::INTEGER[] AS processes, $2::UBIGINT[] AS comm_ids, $3::BIGINT AS from_ns,
    $4::BIGINT AS to_ns),
shown AS (SELECT unnest(processes) AS process FROM asked),
of_comm AS (
  SELECT m.process, m.id FROM comms m, asked
  WHERE comm_ids IS NULL OR list_contains(comm_ids, m.comm_id))
"""
_SPAN = """begin_ns >= 0 AND (from_ns IS NULL OR begin_ns >= from_ns)
  AND (to_ns IS NULL OR begin_ns < to_ns)"""
_COMM = "(comm_ids IS NULL OR k.id IS NOT NULL)"
_OPERATIONS = f"""{_ASKED},
used AS (
  SELECT process, operation, max(end_ns) AS used_ns FROM (
    SELECT process, operation, end_ns FROM channels UNION ALL
    SELECT process, operation, time_ns FROM kernels)
  WHERE operation IS NOT NULL GROUP BY ALL)
SELECT o.*, used_ns FROM operations o JOIN shown USING (process) CROSS JOIN asked
LEFT JOIN of_comm k ON k.process = o.process AND k.id = o.comm
LEFT JOIN used u ON u.process = o.process AND u.operation = o.id
WHERE {_COMM} AND {_SPAN}"""
_CHANNELS = f"""{_ASKED}
SELECT c.*, c.sends AS channel_sends, o.function, NULL AS connection
FROM channels c JOIN shown USING (process) CROSS JOIN asked
LEFT JOIN of_comm k ON k.process = c.process AND k.id = c.comm
LEFT JOIN operations o ON o.process = c.process AND o.id = c.operation
WHERE {_COMM} AND {_SPAN.replace("begin_ns ", "c.begin_ns ")}"""
# The end of a kernel is a time of the host's clock; its duration was measured by the GPU's clock.
_KERNELS = f"""{_ASKED},
timed AS (
  SELECT n.process, n.id, n.operation, n.channel, n.time_ns AS end_ns,
    TRY_CAST(CASE WHEN gpu_stop_ns >= gpu_start_ns AND gpu_start_ns > 0
      THEN time_ns::HUGEINT - (gpu_stop_ns - gpu_start_ns) ELSE time_ns END AS BIGINT) AS begin_ns
  FROM kernels n JOIN shown USING (process))
SELECT t.*, o.comm, o.function FROM timed t CROSS JOIN asked
LEFT JOIN operations o ON o.process = t.process AND o.id = t.operation
LEFT JOIN of_comm k ON k.process = t.process AND k.id = o.comm
WHERE {_COMM} AND {_SPAN.replace("begin_ns ", "t.begin_ns ")}"""
_ENDS = """,
ends AS (
  SELECT process, id, pair, peer,
    row_number() OVER (PARTITION BY pair ORDER BY process, id) - 1 AS side,
    count(*) OVER (PARTITION BY pair) AS ends
  FROM connections),
owner AS (SELECT process, id, comm, channel, peer, sends FROM channels)
"""
_CHANNEL_OF = """c.comm, c.channel, c.peer, c.sends AS channel_sends, e.peer AS connection_peer"""
_OWNED = f"""
LEFT JOIN ends e ON e.process = g.process AND e.id = g.connection
LEFT JOIN owner c ON c.process = g.process AND c.id = g.channel_id
LEFT JOIN of_comm k ON k.process = c.process AND k.id = c.comm
WHERE {_COMM} AND {_SPAN}"""
# The side of a message is the end of the connection that sends it.
_MESSAGES = f"""{_ASKED}{_ENDS}
SELECT g.process, g.connection, g.message, g.sends, g.bytes, g.status, g.posted_ns AS begin_ns,
  g.end_ns, e.pair, CASE WHEN e.ends = 2 AND e.pair IS NOT NULL
    THEN CASE WHEN g.sends THEN side ELSE 1 - side END END AS side, {_CHANNEL_OF}
FROM messages g JOIN shown USING (process) CROSS JOIN asked {_OWNED}"""
_SHARES = ", ".join([*(f"path_{at}" for at in range(PATHS_NAMED)), "path_others"])
_STRIPES = f"""{_ASKED}{_ENDS},
shared AS (SELECT *, [{_SHARES}] AS shares FROM stripes WHERE sends),
busiest AS (
  SELECT t.process, t.connection, t.message, t.bytes, t.engine, t.segments, t.resent, t.status,
    coalesce(t.first_ns, t.posted_ns) AS begin_ns, t.end_ns, list_max(shares) AS share,
    list_position(shares, list_max(shares)) AS position, m.channel_id
  FROM shared t JOIN shown USING (process)
  LEFT JOIN messages m ON m.process = t.process AND m.connection = t.connection
    AND m.message = t.message AND m.sends
  WHERE list_max(shares) > 0)
SELECT g.*, CASE WHEN position > {PATHS_NAMED} THEN -1 ELSE position - 1 END AS path, {_CHANNEL_OF}
FROM busiest g CROSS JOIN asked {_OWNED}"""
_EVENTS = f"""{_ASKED}
SELECT v.*, v.time_ns AS begin_ns FROM events v JOIN shown USING (process) CROSS JOIN asked
WHERE {_SPAN}"""
# Perfetto shows a value until the next one, so each sample gets the rate up to the next sample.
_SAMPLES = f"""{_ASKED},
paired AS (
  SELECT p.*, p.time_ns AS begin_ns, lead(time_ns) OVER next AS next_ns,
    lead(bytes_sent) OVER next AS next_bytes
  FROM paths p JOIN shown USING (process)
  WINDOW next AS (PARTITION BY process, engine, path, peer ORDER BY time_ns))
SELECT process, engine, path, peer, begin_ns, nullif(rtt_ns, 0) AS rtt_ns,
  CASE WHEN next_ns IS NULL THEN 0 WHEN next_ns > begin_ns AND next_bytes >= bytes_sent
    THEN round((next_bytes - bytes_sent) * 1e9 / (next_ns::HUGEINT - begin_ns))::HUGEINT END AS rate
FROM paired CROSS JOIN asked WHERE {_SPAN}"""
SECTIONS = (
    Section("operations", _OPERATIONS),
    Section("events", _EVENTS),
    Section("kernels", _KERNELS),
    Section("channels", _CHANNELS),
    Section("samples", _SAMPLES),
    Section("messages", _MESSAGES),
    Section("stripes", _STRIPES),
)
