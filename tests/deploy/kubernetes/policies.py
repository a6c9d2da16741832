"""Which connections the network policies of a rendered overlay let through."""

import re

import manifests

# Stands for those that a system chooses, where a rule is for all ports.
SOME_PORT = 40000


class Pod:
    """A pod of the overlay: what policies know it by, and its ports."""

    def __init__(self, template):
        self.labels = template["metadata"]["labels"]
        self.name = self.labels["app.kubernetes.io/component"]
        self.containers = template["spec"]["containers"]
        self.ports = {
            port["containerPort"]
            for container in self.containers
            for port in container.get("ports", [])
        }


def _selects(selector, labels):
    if set(selector) - {"matchLabels"}:
        raise ValueError("a selector that is not understood: %r" % selector)
    wanted = selector.get("matchLabels", {})
    return all(labels.get(name) == value for name, value in wanted.items())


def _is_for(rule, port):
    """Whether a rule, which may be for some ports only, is for TCP's `port`."""
    if not rule.get("ports"):
        return True
    return any(
        entry.get("protocol", "TCP") == "TCP"
        and entry["port"] <= port <= entry.get("endPort", entry["port"])
        for entry in rule["ports"]
    )


class Policies:
    """Of one overlay: connections are (calling pod, called pod, port)."""

    def __init__(self, objects):
        (space,) = [o for o in objects if o["kind"] == "Namespace"]
        # Kubernetes adds this label itself.
        self.namespace = dict(space["metadata"].get("labels", {}))
        self.namespace["kubernetes.io/metadata.name"] = space["metadata"][
            "name"
        ]
        self.pods = [Pod(t) for _, t in manifests.all_templates(objects)]
        self.policies = [
            o["spec"] for o in objects if o["kind"] == "NetworkPolicy"
        ]
        self.services = {
            o["metadata"]["name"]: o["spec"]["selector"]
            for o in objects
            if o["kind"] == "Service"
        }

    def _names(self, peer, pod):
        """Whether a peer of a rule is, among others, that pod."""
        if "ipBlock" in peer:
            return False
        return _selects(
            peer.get("namespaceSelector", {}), self.namespace
        ) and _selects(peer.get("podSelector", {}), pod.labels)

    def _rules(self, direction, pod):
        """The rules that a pod is under; None: it is under no policy."""
        ours = [
            policy
            for policy in self.policies
            if direction.capitalize() in policy["policyTypes"]
            and _selects(policy["podSelector"], pod.labels)
        ]
        if not ours:
            return None
        return [rule for one in ours for rule in one.get(direction, [])]

    def _lets(self, direction, pod, other, port):
        rules = self._rules(direction, pod)
        peers = {"ingress": "from", "egress": "to"}[direction]
        return rules is None or any(
            _is_for(rule, port)
            and (
                not rule.get(peers)
                or any(self._names(peer, other) for peer in rule[peers])
            )
            for rule in rules
        )

    def lets_out(self, caller, called, port):
        return self._lets("egress", caller, called, port)

    def lets_in(self, caller, called, port):
        return self._lets("ingress", called, caller, port)

    def _ruled(self, direction):
        """(pod, other pod, port) of all rules of one direction."""
        peers = {"ingress": "from", "egress": "to"}[direction]
        for pod in self.pods:
            for rule in self._rules(direction, pod) or []:
                for other in self.pods:
                    called = pod if direction == "ingress" else other
                    for peer in rule.get(peers, []):
                        if not self._names(peer, other):
                            continue
                        # A rule for whole namespaces means our pods only where
                        # they listen.
                        ports = set(called.ports)
                        if "podSelector" in peer:
                            ports |= {SOME_PORT}
                            ports |= {p["port"] for p in rule.get("ports", [])}
                        for port in ports:
                            if _is_for(rule, port):
                                yield pod, other, port

    def of_rules(self):
        """The connections between our pods that some rule is there for."""
        for pod, other, port in self._ruled("egress"):
            yield pod, other, port
        for pod, other, port in self._ruled("ingress"):
            yield other, pod, port

    def of_settings(self):
        """Those that variables and arguments name a Service or a pod for."""
        address = re.compile(
            r"(?<![\w.-])(?:[\w$()-]+\.)?(%s):(\d+)" % "|".join(self.services)
        )
        for pod in self.pods:
            for container in pod.containers:
                texts = list(manifests.environment(container).values())
                for text in texts + container.get("args", []):
                    for service, port in address.findall(text):
                        for called in self.pods:
                            if _selects(
                                {"matchLabels": self.services[service]},
                                called.labels,
                            ):
                                yield pod, called, int(port)

    def blocked(self):
        """Those of both that a policy of one end or the other blocks."""
        found = set()
        for caller, called, port in [*self.of_rules(), *self.of_settings()]:
            text = "%s -> %s:%d" % (caller.name, called.name, port)
            if not self.lets_out(caller, called, port):
                found.add(text + " has no egress")
            if not self.lets_in(caller, called, port):
                found.add(text + " has no ingress")
        return sorted(found)
