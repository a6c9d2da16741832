"""Who a process is that torchrun has started."""

from __future__ import annotations

from typing import Any, Dict, Mapping


def is_worker(environ: Mapping[str, str]) -> bool:
    """Returns whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in environ


def join_arguments(environ: Mapping[str, str]) -> Dict[str, Any]:
    """Returns arguments of Session.join for a process of torchrun; none for
    others."""
    return {}
