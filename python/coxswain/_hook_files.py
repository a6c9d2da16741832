"""What hooks remember, as files of a checkpoint: one for each rank."""

from __future__ import annotations

import array
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
    os.makedirs(folder, exist_ok=True)
    with open(path + ".partial", "wb") as file:
        file.write(data)
    os.replace(path + ".partial", path)
    # Until all have written theirs, the ones before may be all there is.
    session.all_reduce(array.array("b", [1]), "min")
    if session.rank == 0:
        # Of a checkpoint with another number of ranks in the same place.
        for name, found in _found(folder, number).items():
            if int(found[2]) != session.world_size:
                os.remove(os.path.join(folder, name))


def load(run: Any, folder: str, number: int) -> bool:
    """Loads what `save` has saved, by any number of ranks; returns whether
    there is any. All ranks call it: rank 0 chooses the files. Raises Error with
    the code FAILED_PRECONDITION if files are missing, or it is another hook's
    or another model's."""
    session = run.session
    chosen = array.array("q", [0])
    if session.rank == 0:
        chosen[0] = _saved_by(folder, number)
    session.broadcast(chosen, 0)
    ranks = chosen[0]
    if not ranks:
        return False
    parts = []
    for rank in range(ranks):
        path = os.path.join(folder, _NAME % (number, rank, ranks))
        try:
            with open(path, "rb") as file:
                parts.append(file.read())
        except FileNotFoundError:
            error = Error(
                "%s is missing: the checkpoint was saved by %d ranks, and each "
                "needs the files of all: use a folder that they share, or "
                "delete the others, and the hook begins without"
                % (path, ranks)
            )
            error.code = Code.FAILED_PRECONDITION
            raise error from None
    run._exchange.load(parts)
    return True


def _saved_by(folder: str, number: int) -> int:
    """Returns how many ranks have saved the files that are there; 0: there are
    none. Where a save was interrupted there may be those of two: the complete
    ones count, and of these the newer ones."""
    by_ranks: Dict[int, float] = {}
    complete: Dict[int, int] = {}
    for name, found in _found(folder, number).items():
        ranks = int(found[2])
        time = os.stat(os.path.join(folder, name)).st_mtime
        by_ranks[ranks] = max(time, by_ranks.get(ranks, 0))
        complete[ranks] = complete.get(ranks, 0) + 1
    whole = [ranks for ranks, count in complete.items() if count == ranks]
    return max(whole or by_ranks, key=lambda ranks: by_ranks[ranks], default=0)


def _found(folder: str, number: int) -> Dict[str, Any]:
    if not os.path.isdir(folder):
        return {}
    matches = {
        name: re.fullmatch(_PATTERN % number, name)
        for name in os.listdir(folder)
    }
    return {name: match for name, match in matches.items() if match}
