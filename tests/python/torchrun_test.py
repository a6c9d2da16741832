#!/usr/bin/env python3
"""Coxswain under torchrun: torchrun_test.py [--restarts N] [OPTION]...

OPTION is one of unittest.

Real processes: a coordinator, torchrun, and workers with torch on the CPU.
"""

import argparse
import json
import os
import subprocess
import sys
import types
import unittest

sys.dont_write_bytecode = True  # It would be in the source tree.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.abspath("python"))

import coxswain  # noqa: E402
from beside import BesideTest  # noqa: E402
from torch_python import torch_python  # noqa: E402
from torchrun_support import Scene  # noqa: E402

# torchrun.py needs no torch; the package that it is in does.
_package = types.ModuleType("coxswain.torch")
_package.__path__ = [os.path.abspath("python/coxswain/torch")]
sys.modules["coxswain.torch"] = _package
from coxswain.torch import torchrun  # noqa: E402

RESTARTS = 5
# One restart: torch is imported by two processes of a busy machine.
RESTART_S = 45
MOMENTS = (
    "joining", "joined", "late", "kill", "left", "start", "exception",
    "decided", "exit",
)


def variables(**changed):
    """Returns what torchrun sets, and what a user may have set."""
    given = {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "2",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "4",
        "TORCHELASTIC_RUN_ID": "mnist",
        "TORCHELASTIC_RESTART_COUNT": "3",
    }
    given.update(changed)
    return given


def refusals(options):
    """Returns the error of the handler, or of its maker, for each of these."""
    code = (
        "import json, sys\n"
        "from torch.distributed.elastic.rendezvous import *\n"
        "from coxswain.torch.rendezvous import creator\n"
        "errors = []\n"
        "for options in json.loads(sys.argv[1]):\n"
        "    try:\n"
        "        handler = creator()(RendezvousParameters(**options))\n"
        "        handler.next_rendezvous()\n"
        "    except (ValueError, RendezvousError) as error:\n"
        "        errors.append(str(error))\n"
        "print(json.dumps(errors))\n"
    )
    done = subprocess.run(
        [torch_python(), "-c", code, json.dumps(options)],
        env=dict(
            os.environ,
            COXSWAIN_INSECURE="1",
            PYTHONPATH=os.path.abspath("python"),
            COXSWAIN_LIBRARY=os.path.abspath("capi/libcoxswain_c.so"),
        ),
        stdout=subprocess.PIPE, text=True, timeout=60, check=True,
    )
    return json.loads(done.stdout)


class VariablesTest(unittest.TestCase):
    def test_identify_a_worker(self):
        self.assertTrue(torchrun.is_worker(variables()))
        self.assertEqual(
            torchrun.join_arguments(variables()),
            {"job": "mnist", "node": "000002", "slot": 1, "world_size": 8,
             "attempt": 3},
        )

    def test_say_nothing_without_torchrun(self):
        for given in ({}, {"RANK": "1", "WORLD_SIZE": "2"},
                      variables(TORCHELASTIC_RUN_ID="")):
            self.assertEqual(torchrun.join_arguments(given), {})
            self.assertFalse(torchrun.is_worker(given))

    def test_give_way_to_what_a_user_has_set(self):
        self.assertEqual(
            torchrun.join_arguments(
                variables(
                    COXSWAIN_JOB="mine",
                    COXSWAIN_WORLD_SIZE="8",
                    COXSWAIN_ATTEMPT="17",
                    COXSWAIN_NODE="rack-7",
                )
            ),
            {"node": "rack-7", "slot": 1},
        )
        arguments = torchrun.join_arguments(
            variables(COXSWAIN_LOCAL_RANK="4"), given=("job", "attempt")
        )
        self.assertEqual(
            arguments, {"node": "000002", "slot": 4, "world_size": 8}
        )

    def test_of_jobs_without_a_name_differ_from_start_to_start(self):
        names = set()
        for start in ("k2j9_x", "a1b2c3d4"):
            for attempt in (0, 1):
                given = variables(
                    TORCHELASTIC_RUN_ID="none",
                    GROUP_WORLD_SIZE="1",
                    TORCHELASTIC_ERROR_FILE="/tmp/torchelastic_zz/none_%s/"
                    "attempt_%d/1/error.json" % (start, attempt),
                )
                names.add(torchrun.join_arguments(given)["job"])
        self.assertEqual(names, {"torchrun-k2j9_x", "torchrun-a1b2c3d4"})

    def test_without_a_name_are_refused_where_none_can_be_made(self):
        file = "/tmp/torchelastic_zz/none_k2j9_x/attempt_0/1/error.json"
        for changed in (
            {"TORCHELASTIC_ERROR_FILE": file},  # several nodes
            {"GROUP_WORLD_SIZE": "1"},
            {"GROUP_WORLD_SIZE": "1", "TORCHELASTIC_ERROR_FILE": "/dev/null"},
        ):
            with self.assertRaisesRegex(
                coxswain.InvalidArgument, "give --rdzv-id, or set COXSWAIN_JOB"
            ):
                torchrun.join_arguments(
                    variables(TORCHELASTIC_RUN_ID="none", **changed)
                )

    def test_that_make_no_sense_are_named(self):
        for name in ("GROUP_RANK", "LOCAL_RANK", "WORLD_SIZE",
                     "TORCHELASTIC_RESTART_COUNT"):
            for value in ("", "x", "-1", "1" * 10):
                with self.assertRaisesRegex(
                    coxswain.InvalidArgument, "^%s is %r" % (name, value)
                ):
                    torchrun.join_arguments(variables(**{name: value}))
        for name in ("my job", ".", "a" * 129):
            with self.assertRaisesRegex(
                coxswain.InvalidArgument, "--rdzv-id"
            ):
                torchrun.join_arguments(variables(TORCHELASTIC_RUN_ID=name))

    def test_of_two_launchers_are_refused(self):
        with self.assertRaisesRegex(
            coxswain.InvalidArgument, "start it with one of them"
        ):
            torchrun.join_arguments(variables(COXSWAIN_LAUNCHER_ID="7"))


class RestartTest(unittest.TestCase):
    def test_workers_are_started_again_whenever_one_fails(self):
        moments = [MOMENTS[i % len(MOMENTS)] for i in range(RESTARTS)]
        with Scene() as scene, scene.torchrun(
            "--nproc-per-node", "2", "--max-restarts", str(RESTARTS),
            how="fail=" + ",".join(moments),
            COXSWAIN_COORDINATOR=scene.address,
        ) as program:
            for attempt, moment in enumerate(moments):
                program.line(
                    "ATTEMPT %d %s" % (attempt, moment), timeout=RESTART_S
                )
                program.line("FAILS " + moment, timeout=RESTART_S)
            done = "DONE rank=[01] world=2 restarts=%d" % RESTARTS
            program.line(done, timeout=RESTART_S)
            program.line(done, timeout=RESTART_S)
            self.assertEqual(program.end(RESTART_S), 0, program.output)
            self.assertEqual(scene.workers(), [])


class RendezvousTest(BesideTest):
    def test_all_nodes_restart_when_a_worker_fails(self):
        options = ("--nnodes", "2", "--max-restarts", "3")
        with Scene() as scene, scene.agent(
            "two", *options, how="fail=kill"
        ) as one, scene.agent("two", *options, how="fail=kill") as two:
            self.assertEqual(one.end(120), 0, one.output + two.output)
            self.assertEqual(two.end(120), 0, one.output + two.output)
            output = one.output + two.output
            self.assertEqual(output.count("FAILS kill"), 1, output)
            for rank in (0, 1):
                self.assertEqual(
                    output.count("DONE rank=%d world=2" % rank), 1, output
                )
            self.assertEqual(output.count("JOINED"), 4, output)

    def test_a_node_is_killed_and_another_one_comes(self):
        options = ("--nnodes", "1:2", "--max-restarts", "3")
        with Scene() as scene, scene.agent(
            "grows", *options, how="until"
        ) as stays, scene.agent("grows", *options, how="until") as dies:
            begin = self._await_training([stays, dies], world_size=2)
            dies.kill()
            shrunk = self._await_training([stays], world_size=1)
            self.assertGreater(shrunk, begin)
            # The worker that has lost its agent has found its attempt over.
            with scene.agent("grows", *options, how="until") as comes:
                grown = self._await_training([stays, comes], world_size=2)
                self.assertGreater(grown, shrunk)
                self.assertEqual(len(scene.workers()), 2, scene.workers())
                scene.finish()
                self.assertEqual(stays.end(60), 0, stays.output)
                self.assertEqual(comes.end(60), 0, comes.output)
            self.assertEqual(scene.workers(), [])

    def test_a_coordinator_is_started_again(self):
        options = ("--nnodes", "2", "--max-restarts", "0")
        with Scene() as scene, scene.agent(
            "again", *options, how="until"
        ) as one, scene.agent("again", *options, how="until") as two:
            self._await_training([one, two], world_size=2)
            scene.kill_coordinator()
            scene.start_coordinator()
            scene.finish()
            # Neither has met the other again: there was no other attempt.
            for agent in (one, two):
                self.assertEqual(agent.end(120), 0, agent.output)
                self.assertEqual(agent.output.count("JOINED"), 1, agent.output)

    def _await_training(self, agents, world_size):
        """Returns the step that they have begun from."""
        line = r"TRAINS world=%d restarts=\d+ from=(\d+)$" % world_size
        begins = {agent.line(line, timeout=90).group(1) for agent in agents}
        begin, = begins
        return int(begin)

    def test_what_cannot_be_is_one_sentence(self):
        cases = (
            ({"run_id": "none"}, "give --rdzv-id"),
            ({"endpoint": ""}, "give --rdzv-endpoint"),
            ({"run_id": "a b"}, "--rdzv-id is 'a b', and a job's name has"),
            ({"run_id": "a" * 122}, "a job's name 121 at most"),
            ({"tls_cert_file": "x"},
             "has tls_cert_file, and the backend coxswain knows join_timeout"),
            ({"join_timeout": "0"}, "join_timeout=0 of --rdzv-conf"),
            ({"join_timeout": "soon"}, "'join_timeout'"),
            # COXSWAIN_INSECURE does not count.
            ({"endpoint": "head.invalid:7077", "token_file": __file__},
             "give --tls-ca"),
            # Nothing listens there.
            ({"join_timeout": "1"}, "127.0.0.1:9"),
        )
        options = [
            dict(
                {"backend": "coxswain", "endpoint": "127.0.0.1:9",
                 "run_id": "a", "min_nodes": 1, "max_nodes": 1},
                **changed,
            )
            for changed, _ in cases
        ]
        errors = refusals(options)
        for (changed, sentence), error in zip(cases, errors):
            self.assertIn(sentence, error, changed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--restarts", type=int, default=RESTARTS)
    known, rest = parser.parse_known_args()
    RESTARTS = known.restarts
    unittest.main(argv=sys.argv[:1] + rest)
