"""Makes NCCL load weft's profiler; a profiler that the user has chosen is then called after it."""

from transport import native


def load_profiler(variables: dict[str, str]) -> None:
    """Sets NCCL_PROFILER_PLUGIN, and WEFT_PROFILER_CHAIN to the profiler that was set before."""
    own = str(native.PLUGIN_PATH)
    before = variables.get("NCCL_PROFILER_PLUGIN", "")
    if before not in ("", "none", "STATIC_PLUGIN", own):
        variables.setdefault("WEFT_PROFILER_CHAIN", before)
    variables["NCCL_PROFILER_PLUGIN"] = own
