#!/usr/bin/env python3
"""What libtorch multiplies matrices with, how fast, and with which bits.

usage: blas_test.py COXSWAIN ELASTIC

Debian's libtorch calls whatever libblas.so.3 is.
"""

import os
import platform
import re
import subprocess
import sys
import unittest

PROGRAMS = {}
TIMEOUT_S = 240
# What OpenBLAS reads, and the launcher respects.
SETTINGS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
LOAD = "import ctypes; blas = ctypes.CDLL('libblas.so.3'); "
THREADS = LOAD + "print('threads:', blas.openblas_get_num_threads())"
# The bits of a product of two matrices, and the name of the kernels.
PRODUCT = LOAD + """
n = 64
a = (ctypes.c_float * (n * n))(*(1 / (1 + i) for i in range(n * n)))
c = (ctypes.c_float * (n * n))()
blas.cblas_sgemm.argtypes = [ctypes.c_int] * 6 + [
    ctypes.c_float, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p,
    ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_int]
blas.cblas_sgemm(101, 111, 111, n, n, n, 1.0, a, n, a, n, 0.0, c, n)
print(bytes(c).hex())
"""
# Kernels that each CPU of a kind has, and others than most of them choose.
OLDEST = {"x86_64": "Prescott", "aarch64": "ARMV8"}


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if k not in SETTINGS}
    return dict(kept, **more)


def run(command, variables):
    return subprocess.run(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


class BlasTest(unittest.TestCase):
    def test_libtorch_computes_with_openblas(self):
        linked = run(["ldd", PROGRAMS["elastic"]], environment()).stdout
        (path,) = re.findall(r"libblas\.so\.3 => (\S+)", linked)
        self.assertIn(
            "openblas",
            os.path.realpath(path),
            "tools/install_deps.sh installs libopenblas0-pthread; `update-"
            "alternatives --config libblas.so.3-%s-linux-gnu` chooses it"
            % platform.machine(),
        )

    def threads_of_ranks(self, **settings):
        done = run(
            [PROGRAMS["coxswain"], "run", "--nproc", "2", "--",
             sys.executable, "-c", THREADS],
            environment(**settings),
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return re.findall(r"threads: (\d+)", done.stdout)

    def test_a_rank_has_one_thread_unless_the_user_sets_another(self):
        self.assertEqual(self.threads_of_ranks(), ["1", "1"])
        for name in SETTINGS:
            self.assertEqual(
                self.threads_of_ranks(**{name: "2"}), ["2", "2"], name
            )

    def test_ranks_whose_products_have_other_bits_hold_the_same_parameters(
        self,
    ):
        oldest = OLDEST.get(platform.machine())
        if oldest is None:
            self.skipTest("SKIPPED: no names of kernels of this machine")
        products = {
            run(
                [sys.executable, "-c", PRODUCT], environment(**variables)
            ).stdout
            for variables in ({}, {"OPENBLAS_CORETYPE": oldest})
        }
        if len(products) < 2:
            self.skipTest(
                "SKIPPED: this CPU's kernels give the same bits as the oldest"
            )
        # Each step compares the parameters of all ranks bit by bit.
        script = (
            "[ $COXSWAIN_LOCAL_RANK = 0 ] || export OPENBLAS_CORETYPE=%s; "
            'exec "$0" 60' % oldest
        )
        done = run(
            [PROGRAMS["coxswain"], "run", "--nproc", "2",
             "--plan", "checksum_every=1", "--", "/bin/sh", "-c", script,
             PROGRAMS["elastic"]],
            environment(),
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("rank 1 of 2", done.stdout)


if __name__ == "__main__":
    for path in sys.argv[1:3]:
        PROGRAMS[os.path.basename(path)] = os.path.realpath(path)
    del sys.argv[1:3]
    unittest.main()
