#!/usr/bin/env python3
"""Writes a folder as a coordinator leaves it that is killed while a job runs.

  write_state.py COXSWAIN ELASTIC_TOY CHECKPOINT FOLDER

CHECKPOINT is an exported one, which the job gets as well. The folders in
testdata/ were made so by the version in their names, and are never made anew:
what was stored once has to be read by later versions (upgrade_test.py).
"""

import os
import shutil
import subprocess
import sys
import tempfile


def main(coxswain, toy, checkpoint, folder):
    with tempfile.TemporaryDirectory() as scratch:
        state = os.path.join(scratch, "state")
        serve = subprocess.Popen(
            [coxswain, "serve", "--listen", "127.0.0.1:0"]
            + ["--state-dir", state],
            stdout=subprocess.PIPE,
            text=True,
        )
        address = serve.stdout.readline().split()[-1]

        def ask(*words):
            subprocess.run(
                [coxswain] + list(words) + ["--coordinator", address],
                check=True,
                timeout=60,
            )

        run = subprocess.Popen(
            [coxswain, "run", "--nproc", "3", "--min-workers", "2"]
            + ["--node", "old", "--job", "train", "--coordinator", address]
            + ["--", toy, "--steps", "1000000000", "--pace-ms", "5"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in run.stdout:
            if " step 20 " in line:
                break
        ask("plan", "set", "train", "progress_timeout=90s")
        ask("checkpoint", "import", checkpoint, "--job", "train")
        for line in run.stdout:
            if " step 60 " in line:
                break
        serve.kill()
        serve.wait()
        run.kill()
        run.wait()
        shutil.copytree(state, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
