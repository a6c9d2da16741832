#!/usr/bin/env python3
"""Network policies let through, at both ends, what is meant to pass.

A connection needs an egress of the one pod and an ingress of the other. What is
meant is what either of them has a rule for, and what settings name.
"""

import copy
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import manifests  # noqa: E402
import policies  # noqa: E402


def names(connections):
    return {
        (caller.name, called.name, port) for caller, called, port in connections
    }


class PoliciesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.objects = {
            name: manifests.render_overlay(name) for name in manifests.OVERLAYS
        }

    def test_no_connection_between_our_pods_is_let_through_at_one_end_only(self):
        for name, objects in self.objects.items():
            with self.subTest(overlay=name):
                self.assertEqual(policies.Policies(objects).blocked(), [])

    def test_the_connections_of_all_overlays_are_looked_at(self):
        for name, objects in self.objects.items():
            with self.subTest(overlay=name):
                overlay = policies.Policies(objects)
                self.assertIn(
                    ("worker", "coordinator", 7077), names(overlay.of_rules())
                )
                self.assertIn(
                    ("worker", "coordinator", 7077),
                    names(overlay.of_settings()),
                )
        several = policies.Policies(self.objects["etcd-ha"])
        for connection in (
            ("coordinator", "coordinator", 7077),
            ("coordinator", "etcd", 2379),
            ("etcd", "etcd", 2380),
        ):
            self.assertIn(connection, names(several.of_rules()))
            self.assertIn(connection, names(several.of_settings()))

    def test_pods_are_isolated_from_what_no_rule_allows(self):
        overlay = policies.Policies(self.objects["etcd-ha"])
        pods = {pod.name: pod for pod in overlay.pods}
        worker, coordinator, etcd = (
            pods["worker"], pods["coordinator"], pods["etcd"]
        )
        self.assertFalse(overlay.lets_in(worker, etcd, 2379))
        self.assertFalse(overlay.lets_in(worker, coordinator, 7079))
        self.assertFalse(overlay.lets_in(coordinator, worker, 7077))
        self.assertFalse(overlay.lets_out(coordinator, worker, 7077))
        self.assertFalse(overlay.lets_out(coordinator, etcd, 2380))

    def spoilt(self, change):
        """What is blocked in etcd-ha once its policies were changed."""
        objects = copy.deepcopy(self.objects["etcd-ha"])
        change(
            {
                o["metadata"]["name"]: o["spec"]
                for o in objects
                if o["kind"] == "NetworkPolicy"
            }
        )
        return policies.Policies(objects).blocked()

    def test_a_rule_without_its_counterpart_is_found(self):
        between = "coordinator -> coordinator:7077"

        def only_workers_come_in(specs):
            del specs["coxswain-coordinator"]["ingress"][0]["from"][1:]

        self.assertEqual(
            self.spoilt(only_workers_come_in), [between + " has no ingress"]
        )

        def another_port_comes_in(specs):
            specs["coxswain-etcd"]["ingress"][0]["ports"][0]["port"] = 2378

        self.assertEqual(
            self.spoilt(another_port_comes_in),
            [
                "coordinator -> etcd:2378 has no egress",
                "coordinator -> etcd:2379 has no ingress",
            ],
        )

        def nothing_goes_out(specs):
            specs["coxswain-coordinator"]["egress"] = []

        self.assertEqual(
            self.spoilt(nothing_goes_out),
            [
                between + " has no egress",
                "coordinator -> etcd:2379 has no egress",
            ],
        )

        def another_namespace(specs):
            specs["coxswain-worker"]["ingress"][0]["from"][0][
                "namespaceSelector"
            ] = {"matchLabels": {"kubernetes.io/metadata.name": "other"}}
            specs["coxswain-worker"].update(
                policyTypes=["Ingress", "Egress"],
                egress=[
                    {"to": [{"podSelector": specs["coxswain-worker"][
                        "podSelector"]}]}
                ],
            )

        self.assertIn(
            "worker -> worker:%d has no ingress" % policies.SOME_PORT,
            self.spoilt(another_namespace),
        )


if __name__ == "__main__":
    if manifests.kubectl() is None:
        print("SKIPPED: no kubectl (tools/install_deps.sh --tests has it):")
        print("NO manifest was rendered")
        sys.exit(0)
    unittest.main()
