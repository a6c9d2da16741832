"""Attempts of jobs, one after the other, in the processes of one launcher."""

import faulthandler
import gc
import glob
import os
import time


def attempts(scenes, plan, most=4):
    """Runs scenes, each an attempt of a job with so many ranks of the `most`
    that there are, in processes that are forked once torch is loaded. A scene is
    the name of a function, or a program."""
    rank = int(os.environ["COXSWAIN_LOCAL_RANK"])
    gc.freeze()  # As preloaded.py does.
    for number, (scene, job, attempt, ranks) in enumerate(plan):
        if rank < ranks:
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(100, exit=True)
                os.environ.update(
                    COXSWAIN_JOB=job,
                    COXSWAIN_ATTEMPT=str(attempt),
                    COXSWAIN_WORLD_SIZE=str(ranks),
                    COXSWAIN_MIN_WORLD_SIZE=str(ranks),
                    COXSWAIN_LOCAL_WORLD_SIZE=str(ranks),
                )
                if os.access(scene, os.X_OK):
                    os.execl(scene, scene, "4", job)
                scenes[scene]()
                print("DONE %s %d" % (job, attempt), flush=True)
                return
            os.waitpid(child, 0)
        # An attempt ends those before it.
        folder = os.environ["SCENES_FOLDER"]
        open(os.path.join(folder, "%d.%d" % (number, rank)), "w").close()
        while len(glob.glob("%s/%d.*" % (folder, number))) < most:
            time.sleep(0.02)
