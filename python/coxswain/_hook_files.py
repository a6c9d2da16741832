"""What hooks remember, as files of a checkpoint: one for each rank."""

from __future__ import annotations

import os
import re
from typing import Any, Dict

from .errors import Code, Error

_NAME = "coxswain_hook_%d_%05d-of-%05d.bin"
_PATTERN = r"coxswain_hook_%d_(\d{5})-of-(\d{5})\.bin"


def save(run: Any, folder: str, number: int) -> None:
    """Saves what the hook of a run remembers. All ranks call it, between steps,
    with a folder that they share.

    number: of the model, from 0.
    """
    session = run.session
    path = os.path.join(
        folder, _NAME % (number, session.rank, session.world_size)
    )
    data = run._exchange.save(whole=False)
    with open(path + ".partial", "wb") as file:
        file.write(data)
    os.replace(path + ".partial", path)
    if session.rank == 0:
        # Of a checkpoint with another number of ranks in the same place.
        for name, found in _found(folder, number).items():
            if int(found[2]) != session.world_size:
                os.remove(os.path.join(folder, name))


def load(run: Any, folder: str, number: int) -> bool:
    """Loads what `save` has saved, by any number of ranks; returns whether
    there is any. Raises Error with the code FAILED_PRECONDITION if files are
    missing, or it is another hook's or another model's."""
    found = _found(folder, number)
    if not found:
        return False
    ranks = max(int(one[2]) for one in found.values())
    parts = []
    for rank in range(ranks):
        path = os.path.join(folder, _NAME % (number, rank, ranks))
        try:
            with open(path, "rb") as file:
                parts.append(file.read())
        except FileNotFoundError:
            error = Error(
                "%s is missing: the checkpoint was saved by %d ranks, and each "
                "needs the files of all: use a folder that they share"
                % (path, ranks)
            )
            error.code = Code.FAILED_PRECONDITION
            raise error from None
    run._exchange.load(parts)
    return True


def _found(folder: str, number: int) -> Dict[str, Any]:
    matches = {
        name: re.fullmatch(_PATTERN % number, name)
        for name in os.listdir(folder)
    }
    return {name: match for name, match in matches.items() if match}
