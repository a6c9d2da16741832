"""The identity of a process that torchrun has started: docs/torchrun.md.

Needs the standard library alone.
"""

from __future__ import annotations

import os
import re
from typing import Any, Container, Dict, Mapping, Optional

from ..errors import InvalidArgument

RUN_ID = "TORCHELASTIC_RUN_ID"
# torchrun's name for a job without --rdzv-id.
UNNAMED = "none"

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_MAX_NAME = 128
# Ranks are in the order of the nodes' names, whose digits count as numbers.
_NODE = "%06d"


def is_worker(environ: Mapping[str, str]) -> bool:
    """Returns whether torchrun has started this process."""
    return bool(environ.get(RUN_ID))


def join_arguments(
    environ: Mapping[str, str], given: Container[str] = ()
) -> Dict[str, Any]:
    """Returns the arguments of Session.join that torchrun's variables stand
    for: job, node, slot, world_size and attempt. Returns none if torchrun has
    not started this process.

    Leaves out what COXSWAIN_JOB, COXSWAIN_WORLD_SIZE or COXSWAIN_ATTEMPT set;
    COXSWAIN_NODE and COXSWAIN_LOCAL_RANK replace GROUP_RANK and LOCAL_RANK.

    given: arguments that the program has set, which are not read from
        variables.

    Raises InvalidArgument, naming the variable, if torchrun's are not valid,
    the job has no name of its own, or `coxswain run` has set variables as well.
    """
    if not is_worker(environ):
        return {}
    if environ.get("COXSWAIN_LAUNCHER_ID"):
        raise InvalidArgument(
            "both torchrun and `coxswain run` have started this process (%s and "
            "COXSWAIN_LAUNCHER_ID are set): start it with one of them" % RUN_ID
        )
    arguments: Dict[str, Any] = {}
    if not environ.get("COXSWAIN_JOB") and "job" not in given:
        arguments["job"] = _job(environ)
    arguments["node"] = environ.get("COXSWAIN_NODE") or (
        _NODE % _number(environ, "GROUP_RANK")
    )
    slot = "LOCAL_RANK"
    if environ.get("COXSWAIN_LOCAL_RANK"):
        slot = "COXSWAIN_LOCAL_RANK"
    arguments["slot"] = _number(environ, slot)
    if not environ.get("COXSWAIN_WORLD_SIZE"):
        arguments["world_size"] = _number(environ, "WORLD_SIZE")
    if not environ.get("COXSWAIN_ATTEMPT"):
        arguments["attempt"] = _number(environ, "TORCHELASTIC_RESTART_COUNT")
    return {
        name: value for name, value in arguments.items() if name not in given
    }


def check_name(name: str, where: str, beside: int = 0) -> str:
    """Returns a job's name if it is valid.

    where: what sets it, such as "--rdzv-id". beside: how many characters are
    added to it. Raises InvalidArgument if the coordinator would refuse it.
    """
    if re.fullmatch(r"[A-Za-z0-9._-]+", name) is None or name in (".", ".."):
        raise InvalidArgument(
            "%s is %r, and a job's name has letters, digits, '.', '_' and '-'"
            % (where, name)
        )
    if len(name) + beside > _MAX_NAME:
        raise InvalidArgument(
            "%s has %d characters, and a job's name %d at most"
            % (where, len(name), _MAX_NAME - beside)
        )
    return name


def _job(environ: Mapping[str, str]) -> str:
    run_id = environ[RUN_ID]
    if run_id != UNNAMED:
        return check_name(run_id, "torchrun's --rdzv-id (%s)" % RUN_ID)
    # Every torchrun without --rdzv-id has this name.
    start = _start(environ)
    if start is None or _number(environ, "GROUP_WORLD_SIZE") != 1:
        raise InvalidArgument(
            "this job has no name (%s is %r, as for every torchrun without "
            "--rdzv-id): give --rdzv-id, or set COXSWAIN_JOB, to a name that "
            "no other job at the coordinator has" % (RUN_ID, run_id)
        )
    return check_name("torchrun-" + start, _ERROR_FILE)


def _start(environ: Mapping[str, str]) -> Optional[str]:
    """Returns a text that differs between any two starts of torchrun on one
    node: a part of the name of its folder for logs, <run id>_<random>, which it
    keeps over restarts of the workers. None if it has no such folder."""
    parts = environ.get(_ERROR_FILE, "").split(os.sep)
    for folder, attempt in zip(parts, parts[1:]):
        prefix = environ[RUN_ID] + "_"
        if re.fullmatch(r"attempt_\d+", attempt) and folder.startswith(prefix):
            return folder[len(prefix):] or None
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise InvalidArgument(
            "%s is %r, where a process of torchrun has a number (%s is set)"
            % (name, text, RUN_ID)
        )
    return int(text)
