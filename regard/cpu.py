"""What this machine's CPU can do. Imports no torch, so that engines without it can ask."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def cpu_flags() -> frozenset[str]:
    """The CPU's instruction sets as Linux lists them; empty elsewhere."""
    if platform.system() != "Linux":
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split())


def adds_int8_exactly() -> bool:
    """Whether products of 8-bit integers are summed in 32 bits. An x86 CPU without VNNI sums two of them in 16 bits first, which
    can overflow: 2 * 255 * 127 is above 32,767."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
    return not is_x86 or bool({"avx512_vnni", "avx_vnni"} & cpu_flags())


def has_wide_vnni() -> bool:
    """Whether it multiplies and sums 8-bit integers in registers of 512 bits."""
    return "avx512_vnni" in cpu_flags()
