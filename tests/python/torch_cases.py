"""torch's own cases for DistributedDataParallel, as they are in its package.

    coxswain run --follow --nproc 2 -- python torch_cases.py CASE...

Their own driver starts processes for each case; here they are ranks already.
"""

import os
import sys
import unittest

os.environ["BACKEND"] = "gloo"
for folder in ("barrier", "test_dir", "init_dir"):
    os.makedirs(os.path.join(os.environ["TEMP_DIR"], folder), exist_ok=True)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_utils import (  # noqa: E402
    SEED,
    set_rng_seed,
)
from torch.testing._internal.distributed.distributed_test import (  # noqa: E402
    DistributedTest,
    TestDistBackend,
)

import coxswain.torch  # noqa: E402
from scene_support import whole_lines  # noqa: E402


class Cases(TestDistBackend, DistributedTest._DistTestBase):
    pass


def run(name):
    case = Cases(name)
    # Not MAIN_PROCESS_RANK, which would wait for processes of its own.
    case.rank = dist.get_rank()
    case.file_name = ""
    set_rng_seed(SEED)  # As their driver does.
    try:
        getattr(case, name)()
    except unittest.SkipTest as skipped:
        sys.exit("%s was skipped: %s" % (name, skipped))
    case._barrier()
    print("OK", name, flush=True)


def main():
    torch.set_num_threads(1)
    whole_lines()
    dist.init_process_group("gloo")
    session = coxswain.torch.session()
    dist._test_python_store(
        coxswain.torch.TorchStore(session, "suite/%d/" % session.rank)
    )
    print("OK _test_python_store", flush=True)
    for name in sys.argv[1:]:
        run(name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
