#!/usr/bin/env python3
"""What becomes of torchrun's agents, by docs/torchrun.md, where they wait long.

torchrun_agents_test.py [OPTION]..., of unittest. Real processes: a coordinator,
agents on one host that are a node each, and workers with torch on the CPU.
"""

import os
import sys
import time
import unittest

sys.dont_write_bytecode = True  # It would be in the source tree.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from torchrun_support import Scene  # noqa: E402

TRAINS_S = 90
ENDS_S = 120


def await_training(agents, world_size):
    for agent in agents:
        agent.line("TRAINS world=%d " % world_size, timeout=TRAINS_S)


class AgentsTest(unittest.TestCase):
    def both_are_done_but_one(self, scene, *options):
        """Starts two agents. Once the worker of one is done, and the agent has
        noticed, the other's fails. Returns the agents, that one first."""
        agents = [
            scene.agent(
                "pair", "--max-restarts", "1", *options, how="fail=alone"
            )
            for _ in range(2)
        ]
        for agent in agents:
            agent.__enter__()
            self.addCleanup(agent.__exit__)
        await_training(agents, world_size=2)
        fails, done = agents
        if "ATTEMPT" not in fails.output:
            done, fails = agents
        done.line("DONE", timeout=TRAINS_S)
        while done.children():
            time.sleep(0.05)
        scene.finish()
        return fails, done

    def test_a_node_that_fails_waits_for_one_that_is_done(self):
        with Scene() as scene:
            fails, done = self.both_are_done_but_one(
                scene, "--nnodes", "2", "--rdzv-conf", "join_timeout=5"
            )
            self.assertEqual(fails.end(ENDS_S), 1, fails.output + done.output)
            self.assertIn("RendezvousTimeoutError", fails.output)
            self.assertEqual(done.end(ENDS_S), 0, fails.output + done.output)

    def test_a_node_that_fails_goes_on_alone_where_that_is_enough(self):
        with Scene() as scene:
            fails, done = self.both_are_done_but_one(scene, "--nnodes", "1:2")
            self.assertEqual(fails.end(ENDS_S), 0, fails.output + done.output)
            self.assertIn("DONE rank=0 world=1", fails.output)
            self.assertEqual(done.end(ENDS_S), 0, fails.output + done.output)

    def test_a_coordinator_is_away_for_long(self):
        options = ("--nnodes", "2", "--max-restarts", "0")
        with Scene() as scene, scene.agent(
            "away", *options, how="until"
        ) as one, scene.agent("away", *options, how="until") as two:
            await_training([one, two], world_size=2)
            scene.kill_coordinator()
            for agent in (one, two):
                agent.line("the agents meet again", timeout=60)
            scene.start_coordinator()
            await_training([one, two], world_size=2)
            scene.finish()
            for agent in (one, two):
                self.assertEqual(agent.end(ENDS_S), 0, agent.output)

    def test_an_agent_whose_workers_do_not_end_comes_in_later(self):
        options = ("--nnodes", "1:2", "--max-restarts", "3")
        with Scene() as scene, scene.agent(
            "slow", *options, how="stubborn"
        ) as one, scene.agent("slow", *options, how="stubborn") as two:
            rank = int(one.line(r"JOINED (\d)", timeout=TRAINS_S).group(1))
            fails, slow = (one, two) if rank == 0 else (two, one)
            begun = time.monotonic()
            await_training([fails], world_size=1)
            await_training([fails, slow], world_size=2)
            self.assertGreater(time.monotonic() - begun, 30)
            scene.finish()
            for agent in (one, two):
                self.assertEqual(agent.end(ENDS_S), 0, agent.output)


if __name__ == "__main__":
    unittest.main()
