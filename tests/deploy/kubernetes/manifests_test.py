#!/usr/bin/env python3
"""Checks every overlay of deploy/kubernetes as it is rendered.

That it renders; the restricted Pod Security Standard; that what refers to
something finds it; that graces fit into each other. Objects of other projects
(JobSet, ServiceMonitor, Certificate, Issuer) have no schema here: of these only
what we rely on is checked. What Kubernetes itself knows, schema_test checks.
"""

import copy
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import manifests  # noqa: E402

# The volumes that the restricted standard allows, as far as we know them.
SAFE_VOLUMES = {
    "configMap",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def restricted_findings(template):
    """What in a pod breaks the restricted Pod Security Standard."""
    spec = template["spec"]
    pod = spec.get("securityContext", {})
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= SAFE_VOLUMES:
            yield "volume %s: %s" % (volume["name"], sorted(kinds))
    if pod.get("sysctls") or pod.get("runAsUser") == 0:
        yield "sysctls or user 0"
    for container in spec.get("initContainers", []) + spec["containers"]:
        yield from container_findings(container, pod)


def container_findings(container, pod):
    context = container.get("securityContext", {})

    def is_set(field):
        return context.get(field, pod.get(field))

    where = container["name"] + ": "
    if context.get("privileged") or context.get("procMount"):
        yield where + "privileged or procMount"
    if context.get("allowPrivilegeEscalation") is not False:
        yield where + "allowPrivilegeEscalation is not false"
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield where + "capabilities.drop lacks ALL"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield where + "adds capabilities"
    if is_set("runAsNonRoot") is not True or is_set("runAsUser") == 0:
        yield where + "may run as root"
    if (is_set("seccompProfile") or {}).get("type") not in (
        "RuntimeDefault",
        "Localhost",
    ):
        yield where + "no seccompProfile"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield where + "hostPort"


def selects(selector, labels):
    return all(labels.get(k) == v for k, v in selector.items())


def namespace_of(overlay):
    (namespace,) = overlay.of_kind("Namespace")
    return namespace["metadata"]["name"]


class Overlay:
    def __init__(self, name, objects):
        self.name = name
        self.objects = objects
        self.templates = manifests.all_templates(objects)
        self.containers = [
            (where, template, container)
            for where, template in self.templates
            for container in template["spec"]["containers"]
        ]

    def of_kind(self, kind):
        return [o for o in self.objects if o["kind"] == kind]

    def selected(self, selector):
        """The templates whose pods a set of labels selects."""
        return [
            template
            for _, template in self.templates
            if selects(selector, template["metadata"]["labels"])
        ]


class ManifestsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.overlays = [
            Overlay(name, manifests.render_overlay(name))
            for name in manifests.OVERLAYS
        ]

    def each(self):
        for overlay in self.overlays:
            self.overlay = overlay.name
            yield overlay

    def _formatMessage(self, msg, standardMsg):
        where = getattr(self, "overlay", "")
        return "%s: %s" % (where, super()._formatMessage(msg, standardMsg))

    def test_all_overlays_are_there(self):
        self.assertGreaterEqual(
            set(manifests.OVERLAYS),
            {
                "cpu-demo",
                "etcd-ha",
                "gpu",
                "jobset",
                "service-account-tokens",
                "tls-cert-manager",
            },
        )
        for overlay in self.each():
            names = [manifests.name_of(o) for o in overlay.objects]
            self.assertEqual(len(names), len(set(names)))
            self.assertIn("StatefulSet/coxswain-coordinator", names)
            self.assertEqual(
                [k for k in ("Job", "JobSet") if overlay.of_kind(k)],
                ["JobSet" if overlay.name == "jobset" else "Job"],
            )

    def test_one_namespace_which_enforces_the_restricted_standard(self):
        for overlay in self.each():
            (namespace,) = overlay.of_kind("Namespace")
            for thing in overlay.objects:
                if thing is namespace:
                    continue
                self.assertEqual(
                    thing["metadata"].get("namespace"),
                    namespace["metadata"]["name"],
                    manifests.name_of(thing),
                )
            self.assertEqual(
                namespace["metadata"]["labels"][
                    "pod-security.kubernetes.io/enforce"
                ],
                "restricted",
            )

    def test_pods_keep_to_the_restricted_standard(self):
        for overlay in self.each():
            for where, template in overlay.templates:
                self.assertEqual(
                    list(restricted_findings(template)), [], where
                )
                for container in template["spec"]["containers"]:
                    context = container["securityContext"]
                    self.assertIs(context["readOnlyRootFilesystem"], True)
                self.assertIs(
                    template["spec"]["automountServiceAccountToken"], False
                )

    def test_the_check_of_the_standard_finds_what_breaks_it(self):
        _, good = self.overlays[0].templates[0]
        spoil = [
            lambda s: s.update(hostNetwork=True),
            lambda s: s["volumes"].append(
                {"name": "x", "hostPath": {"path": "/"}}
            ),
            lambda s: s["securityContext"].update(runAsUser=0),
            lambda s: s["securityContext"].pop("runAsNonRoot"),
            lambda s: s["securityContext"].pop("seccompProfile"),
            lambda s: s["containers"][0].pop("securityContext"),
            lambda s: s["containers"][0]["securityContext"].update(
                privileged=True
            ),
            lambda s: s["containers"][0]["securityContext"][
                "capabilities"
            ].update(add=["IPC_LOCK"]),
            lambda s: s["containers"][0]["ports"][0].update(hostPort=1),
        ]
        for number, change in enumerate(spoil):
            bad = copy.deepcopy(good)
            change(bad["spec"])
            self.assertTrue(list(restricted_findings(bad)), number)

    def test_images_have_a_tag_and_no_registry(self):
        for overlay in self.each():
            for where, _, container in overlay.containers:
                name, _, tag = container["image"].partition(":")
                self.assertRegex(name, "^[a-z-]+$", where)
                self.assertRegex(tag, r"^\d+\.\d+\.\d+$", where)

    def test_our_images_have_the_version_of_the_library(self):
        path = os.path.join(manifests.WORKSPACE, "base/version.h")
        with open(path, encoding="utf-8") as file:
            version = re.search(r'kVersion\[\] = "([^"]*)"', file.read())[1]
        for overlay in self.each():
            for where, _, container in overlay.containers:
                if manifests.is_own(container):
                    tag = container["image"].split(":")[1]
                    self.assertEqual(tag, version, where)

    def test_selectors_find_pods(self):
        for overlay in self.each():
            for thing in overlay.objects:
                spec = thing.get("spec", {})
                where = manifests.name_of(thing)
                if thing["kind"] == "Service":
                    found = overlay.selected(spec["selector"])
                elif thing["kind"] == "PodDisruptionBudget":
                    found = overlay.selected(spec["selector"]["matchLabels"])
                elif thing["kind"] == "NetworkPolicy":
                    found = overlay.selected(
                        spec["podSelector"]["matchLabels"]
                    )
                elif thing["kind"] == "StatefulSet":
                    found = overlay.selected(spec["selector"]["matchLabels"])
                    self.assertEqual(found, [spec["template"]], where)
                else:
                    continue
                self.assertEqual(len(found), 1, where)

    def test_rules_of_the_network_name_pods_and_ports_that_are_there(self):
        for overlay in self.each():
            for policy in overlay.of_kind("NetworkPolicy"):
                spec = policy["spec"]
                (own,) = overlay.selected(spec["podSelector"]["matchLabels"])
                for rule in spec.get("ingress", []):
                    self.check_peers(overlay, rule["from"])
                    for port in rule.get("ports", []):
                        self.assertIn(port["port"], self.ports_of(own))
                for rule in spec.get("egress", []):
                    self.check_peers(overlay, rule["to"])
            covered = [
                policy["spec"]["podSelector"]["matchLabels"]
                for policy in overlay.of_kind("NetworkPolicy")
            ]
            for where, template in overlay.templates:
                labels = template["metadata"]["labels"]
                self.assertTrue(
                    any(selects(s, labels) for s in covered), where
                )

    def check_peers(self, overlay, peers):
        for peer in peers:
            if "podSelector" in peer:
                labels = peer["podSelector"]["matchLabels"]
                self.assertTrue(overlay.selected(labels), labels)

    @staticmethod
    def ports_of(template):
        return [
            port["containerPort"]
            for container in template["spec"]["containers"]
            for port in container.get("ports", [])
        ]

    def test_services_publish_names_early_and_their_ports_exist(self):
        for overlay in self.each():
            services = {
                s["metadata"]["name"]: s for s in overlay.of_kind("Service")
            }
            for service in services.values():
                spec = service["spec"]
                self.assertEqual(spec["clusterIP"], "None")
                self.assertIs(spec["publishNotReadyAddresses"], True)
                (template,) = overlay.selected(spec["selector"])
                names = {
                    port["name"]: port["containerPort"]
                    for container in template["spec"]["containers"]
                    for port in container["ports"]
                }
                for port in spec["ports"]:
                    # Without a virtual address nothing translates ports.
                    self.assertEqual(names[port["targetPort"]], port["port"])
            for thing in overlay.of_kind("StatefulSet"):
                self.assertIn(thing["spec"]["serviceName"], services)

    def test_volumes_are_mounted_and_mounts_have_volumes(self):
        for overlay in self.each():
            claims = {
                c["metadata"]["name"]
                for c in overlay.of_kind("PersistentVolumeClaim")
            }
            for thing in overlay.objects:
                templates = thing.get("spec", {}).get(
                    "volumeClaimTemplates", []
                )
                for template in manifests.pod_templates(thing):
                    volumes = {
                        v["name"]: v
                        for v in template["spec"].get("volumes", [])
                    }
                    names = set(volumes) | {
                        c["metadata"]["name"] for c in templates
                    }
                    used = set()
                    for container in template["spec"]["containers"]:
                        paths = [
                            m["mountPath"] for m in container["volumeMounts"]
                        ]
                        self.assertEqual(len(paths), len(set(paths)))
                        used |= {m["name"] for m in container["volumeMounts"]}
                    self.assertEqual(used, names, manifests.name_of(thing))
                    for volume in volumes.values():
                        if "persistentVolumeClaim" in volume:
                            self.assertIn(
                                volume["persistentVolumeClaim"]["claimName"],
                                claims,
                            )

    def test_files_that_settings_name_are_on_volumes(self):
        for overlay in self.each():
            for where, _, container in overlay.containers:
                mounts = [m["mountPath"] for m in container["volumeMounts"]]
                for name, value in manifests.environment(container).items():
                    if not value.startswith("/"):
                        continue
                    self.assertTrue(
                        any((value + "/").startswith(m + "/") for m in mounts),
                        "%s: %s=%s" % (where, name, value),
                    )

    def test_secrets_come_from_certificates(self):
        for overlay in self.each():
            made = {
                c["spec"]["secretName"] for c in overlay.of_kind("Certificate")
            }
            used = {
                volume["secret"]["secretName"]
                for _, template in overlay.templates
                for volume in template["spec"].get("volumes", [])
                if "secret" in volume
            } | {
                source["secret"]["name"]
                for _, template in overlay.templates
                for source in self.projected(template)
                if "secret" in source
            }
            self.assertLessEqual(used, made)
            issuers = {i["metadata"]["name"] for i in overlay.of_kind("Issuer")}
            for certificate in overlay.of_kind("Certificate"):
                self.assertIn(
                    certificate["spec"]["issuerRef"]["name"], issuers
                )
            for issuer in overlay.of_kind("Issuer"):
                if "ca" in issuer["spec"]:
                    self.assertIn(issuer["spec"]["ca"]["secretName"], made)

    @staticmethod
    def projected(template):
        """The sources of all projected volumes of a pod."""
        return [
            source
            for volume in template["spec"].get("volumes", [])
            for source in volume.get("projected", {}).get("sources", [])
        ]

    def accounts(self):
        (overlay,) = [
            o for o in self.overlays if o.name == "service-account-tokens"
        ]
        self.overlay = overlay.name
        job = manifests.one(overlay.objects, "Job", "coxswain-train")
        coordinator = manifests.one(
            overlay.objects, "StatefulSet", "coxswain-coordinator"
        )
        template = coordinator["spec"]["template"]
        return overlay, job, template

    def test_accounts_get_tokens_for_the_coordinator_alone(self):
        _, job, coordinator = self.accounts()
        settings = manifests.environment(
            manifests.container_of(coordinator, "coordinator")
        )
        for template, name in (
            (job["spec"]["template"], "worker"),
            (coordinator, "coordinator"),
        ):
            (asked,) = [
                source["serviceAccountToken"]
                for source in self.projected(template)
                if "serviceAccountToken" in source
            ]
            self.assertEqual(
                asked["audience"], settings["COXSWAIN_TOKEN_AUDIENCE"]
            )
            # The least that Kubernetes gives.
            self.assertGreaterEqual(asked["expirationSeconds"], 600)
            container = manifests.container_of(template, name)
            self.assertTrue(
                manifests.environment(container)[
                    "COXSWAIN_TOKEN_FILE"
                ].endswith("/" + asked["path"])
            )

    def test_accounts_are_bound_to_their_names(self):
        overlay, job, coordinator = self.accounts()
        worker = job["spec"]["template"]
        settings = manifests.environment(
            manifests.container_of(worker, "worker")
        )
        expected = {}
        for template, name in (
            (worker, "job/" + settings["COXSWAIN_JOB"]),
            (coordinator, "operator"),
        ):
            account = manifests.one(
                overlay.objects,
                "ServiceAccount",
                template["spec"]["serviceAccountName"],
            )
            self.assertIs(account["automountServiceAccountToken"], False)
            expected[name] = "subject:system:serviceaccount:%s:%s" % (
                job["metadata"]["namespace"],
                account["metadata"]["name"],
            )
        bound = manifests.one(overlay.objects, "ConfigMap", "coxswain-tokens")
        lines = bound["data"]["tokens"].splitlines()
        self.assertEqual(dict(line.split() for line in lines), expected)
        self.assertEqual(len(lines), len(expected))

    def test_tokens_are_shown_to_a_proxy_with_the_configuration_of_all(self):
        overlay, _, coordinator = self.accounts()
        settings = manifests.environment(
            manifests.container_of(coordinator, "coordinator")
        )
        proxy = manifests.container_of(coordinator, "proxy")
        known = manifests.environment(proxy)
        self.assertEqual(known["COXSWAIN_BEHIND"], settings["COXSWAIN_LISTEN"])
        self.assertEqual(known["COXSWAIN_SIGNED_TOKENS"], "yes")
        (service,) = overlay.of_kind("Service")
        (port,) = service["spec"]["ports"]
        self.assertEqual(known["COXSWAIN_FRONT"], "0.0.0.0:%d" % port["port"])
        self.assertEqual(
            proxy["ports"],
            [{"containerPort": port["port"], "name": port["targetPort"]}],
        )
        (volume,) = [
            v for v in coordinator["spec"]["volumes"] if v["name"] == "proxy"
        ]
        data = manifests.one(
            overlay.objects, "ConfigMap", volume["configMap"]["name"]
        )["data"]
        for name in ("haproxy.cfg", "run_haproxy.sh"):
            path = os.path.join(manifests.WORKSPACE, "deploy/haproxy", name)
            with open(path, encoding="utf-8") as file:
                self.assertEqual(data[name], file.read(), name)
        for word in proxy["command"][1:] + proxy["args"]:
            folder, name = os.path.split(word)
            self.assertEqual(folder, known["COXSWAIN_MAPS"])
            self.assertIn(name, data)
        (secret,) = [
            v for v in coordinator["spec"]["volumes"] if v["name"] == "tls"
        ]
        self.assertEqual(
            {i["path"] for i in secret["secret"]["items"]},
            {"front.pem", "front.pem.key", "ca.crt"},
        )
        # Only the proxy sees the key.
        for container in coordinator["spec"]["containers"]:
            mounted = [m["name"] for m in container["volumeMounts"]]
            self.assertEqual("tls" in mounted, container is proxy)

    def test_commands_run_in_the_coordinator_where_there_are_two_containers(
        self,
    ):
        for overlay in self.each():
            for where, template in overlay.templates:
                if len(template["spec"]["containers"]) == 1:
                    continue
                self.assertEqual(
                    template["metadata"]["annotations"][
                        "kubectl.kubernetes.io/default-container"
                    ],
                    "coordinator",
                    where,
                )

    def test_workers_that_are_accounts_see_no_key(self):
        _, job, _ = self.accounts()
        template = job["spec"]["template"]
        for volume in template["spec"]["volumes"]:
            self.assertNotIn("secret", volume)
        (secret,) = [
            source["secret"]
            for source in self.projected(template)
            if "secret" in source
        ]
        self.assertEqual([i["key"] for i in secret["items"]], ["ca.crt"])

    def test_config_maps_exist_or_the_manual_describes_how_to_make_them(self):
        path = os.path.join(manifests.WORKSPACE, "docs/kubernetes.md")
        with open(path, encoding="utf-8") as file:
            manual = file.read()
        for overlay in self.each():
            made = {c["metadata"]["name"] for c in overlay.of_kind("ConfigMap")}
            for where, template in overlay.templates:
                for volume in template["spec"].get("volumes", []):
                    if "configMap" not in volume:
                        continue
                    name = volume["configMap"]["name"]
                    command = "-n %s create configmap %s " % (
                        namespace_of(overlay),
                        name,
                    )
                    if name not in made:
                        self.assertIn(command, manual, where)

    def test_certificates_have_the_names_that_workers_call(self):
        for overlay in self.each():
            certificates = {
                c["metadata"]["name"]: c["spec"]
                for c in overlay.of_kind("Certificate")
            }
            if not certificates:
                continue
            for _, _, container in overlay.containers:
                settings = manifests.environment(container)
                if "COXSWAIN_TLS_CA" not in settings:
                    continue
                if container["name"] == "worker" and (
                    "COXSWAIN_TLS_CERT" in settings
                ):
                    job = settings["COXSWAIN_JOB"]
                    self.assertEqual(
                        certificates["coxswain-worker"]["uris"],
                        ["coxswain://job/" + job],
                    )
                called = settings["COXSWAIN_COORDINATOR"]
                for address in called.split(","):
                    self.assertIn(
                        address.rsplit(":", 1)[0],
                        certificates["coxswain-coordinator"]["dnsNames"],
                    )

    def test_either_encrypted_or_marked_insecure(self):
        for overlay in self.each():
            for where, _, container in overlay.containers:
                if not manifests.is_own(container):
                    continue
                settings = manifests.environment(container)
                needed = {"COXSWAIN_TLS_CERT", "COXSWAIN_TLS_KEY"}
                if "COXSWAIN_TOKEN_FILE" in settings:
                    needed = set()
                encrypted = needed | {"COXSWAIN_TLS_CA"} <= set(settings)
                # Behind a proxy that speaks TLS.
                behind = settings.get("COXSWAIN_LISTEN") == "127.0.0.1:7070"
                self.assertEqual(
                    encrypted or behind,
                    overlay.name
                    in ("service-account-tokens", "tls-cert-manager"),
                    where,
                )
                if container["name"] == "coordinator":
                    plain = settings.get("COXSWAIN_INSECURE") == "true"
                    self.assertNotEqual(encrypted or behind, plain, where)
                    page = settings["COXSWAIN_HTTP"].split(":")[0]
                    self.assertNotEqual(plain, page == "127.0.0.1", where)
                    # Callers with tokens are bounded by a proxy alone.
                    self.assertEqual(
                        behind, "COXSWAIN_TOKENS" in settings, where
                    )

    def test_services_do_not_become_settings(self):
        for overlay in self.each():
            for where, template in overlay.templates:
                self.assertIs(
                    template["spec"]["enableServiceLinks"], False, where
                )

    def test_variables_refer_to_those_before_them(self):
        for overlay in self.each():
            for where, _, container in overlay.containers:
                known = set()
                for entry in container.get("env", []):
                    for name in re.findall(
                        r"\$\(([^)]*)\)", entry.get("value", "")
                    ):
                        self.assertIn(name, known, where)
                    self.assertNotIn(entry["name"], known, where)
                    known.add(entry["name"])
                words = container["command"] + container["args"]
                for name in re.findall(r"\$\(([^)]*)\)", " ".join(words)):
                    self.assertIn(name, known, where)

    def test_probes_ask_ports_that_are_there(self):
        for overlay in self.each():
            for where, template, container in overlay.containers:
                if "worker" in where or "train" in where:
                    continue
                ports = container["ports"]
                names = [p["name"] for p in ports]
                for kind in ("livenessProbe", "readinessProbe"):
                    probe = container[kind]
                    (action,) = set(probe) & {"httpGet", "tcpSocket"}
                    self.assertIn(probe[action]["port"], names)

    def test_the_coordinators_probes_ask_what_it_serves_in_plaintext(self):
        for overlay in self.each():
            coordinator = manifests.one(
                overlay.objects, "StatefulSet", "coxswain-coordinator"
            )
            container = manifests.container_of(
                coordinator["spec"]["template"], "coordinator"
            )
            health = manifests.environment(container)["COXSWAIN_HEALTH_LISTEN"]
            asked = {}
            for kind in ("startup", "liveness", "readiness"):
                probe = container[kind + "Probe"]["httpGet"]
                (port,) = [
                    p["containerPort"]
                    for p in container["ports"]
                    if p["name"] == probe["port"]
                ]
                self.assertEqual(port, int(health.rsplit(":", 1)[1]))
                asked[kind] = probe["path"]
            self.assertEqual(asked["startup"], "/liveness")
            self.assertEqual(asked["liveness"], "/liveness")
            # A standby does not serve, and a roll-out must not wait for that;
            # but it must not go on before there is a standby.
            self.assertEqual(
                asked["readiness"],
                "/availability"
                if coordinator["spec"]["replicas"] > 1
                else "/readiness",
            )

    def test_a_drain_fits_into_its_grace(self):
        for overlay in self.each():
            for where, template, container in overlay.containers:
                settings = manifests.environment(container)
                if "COXSWAIN_STOP_GRACE" not in settings:
                    continue
                spec = template["spec"]
                self.assertNotIn("lifecycle", container, where)
                # The launcher stays up to 10 s for its last reports.
                self.assertGreaterEqual(
                    spec["terminationGracePeriodSeconds"],
                    manifests.seconds(settings["COXSWAIN_STOP_GRACE"]) + 10,
                    where,
                )

    def jobs(self):
        for overlay in self.each():
            for thing in overlay.objects:
                for name, spec in manifests.job_specs(thing):
                    (container,) = spec["template"]["spec"]["containers"]
                    yield name, spec, container

    def test_the_completion_index_makes_the_node(self):
        for name, spec, container in self.jobs():
            self.assertEqual(spec["completionMode"], "Indexed", name)
            settings = manifests.environment(container)
            self.assertEqual(
                settings["COXSWAIN_NODE"], "worker-$(JOB_COMPLETION_INDEX)"
            )
            (index,) = [
                e
                for e in container["env"]
                if e["name"] == "JOB_COMPLETION_INDEX"
            ]
            self.assertEqual(
                index["valueFrom"]["fieldRef"]["fieldPath"],
                "metadata.annotations"
                "['batch.kubernetes.io/job-completion-index']",
            )

    def test_there_are_as_many_pods_as_the_job_may_have(self):
        for name, spec, container in self.jobs():
            self.assertEqual(spec["completions"], spec["parallelism"], name)
            least, most = map(
                int,
                manifests.environment(container)["COXSWAIN_NNODES"].split(":"),
            )
            self.assertLessEqual(least, spec["completions"], name)
            self.assertLessEqual(spec["completions"], most, name)

    def test_budgets_leave_the_fewest_and_allow_a_drain(self):
        for overlay in self.each():
            for budget in overlay.of_kind("PodDisruptionBudget"):
                labels = budget["spec"]["selector"]["matchLabels"]
                (template,) = overlay.selected(labels)
                if "coxswain-job" not in labels:
                    continue
                (container,) = template["spec"]["containers"]
                nodes = manifests.environment(container)["COXSWAIN_NNODES"]
                least = budget["spec"]["minAvailable"]
                # A Job has no scale: only a number is evaluated.
                self.assertIsInstance(least, int)
                self.assertEqual(least, int(nodes.split(":")[0]))
                for thing in overlay.objects:
                    for _, spec in manifests.job_specs(thing):
                        self.assertLess(least, spec["completions"])

    def test_disruptions_are_not_counted_and_drains_are_distinguished(self):
        for name, spec, container in self.jobs():
            self.assertEqual(
                spec["template"]["spec"]["restartPolicy"], "Never", name
            )
            self.assertEqual(spec["podReplacementPolicy"], "Failed", name)
            rules = spec["podFailurePolicy"]["rules"]
            self.assertEqual(
                rules[0],
                {
                    "action": "Ignore",
                    "onPodConditions": [
                        {"type": "DisruptionTarget", "status": "True"}
                    ],
                },
                name,
            )
            drained = manifests.environment(container)["COXSWAIN_STOP_STATUS"]
            by_code = {
                code: rule["action"]
                for rule in rules[1:]
                for code in rule["onExitCodes"]["values"]
            }
            self.assertEqual(by_code[int(drained)], "Ignore", name)
            for code in (2, 126, 127):
                self.assertEqual(by_code[code], "FailJob", name)
            for rule in rules[1:]:
                self.assertEqual(
                    rule["onExitCodes"]["containerName"], container["name"]
                )

    def test_shared_memory_is_in_memory_and_within_the_limit(self):
        for name, spec, container in self.jobs():
            (mount,) = [
                m
                for m in container["volumeMounts"]
                if m["mountPath"] == "/dev/shm"
            ]
            (volume,) = [
                v
                for v in spec["template"]["spec"]["volumes"]
                if v["name"] == mount["name"]
            ]
            self.assertEqual(volume["emptyDir"]["medium"], "Memory", name)
            self.assertLess(
                self.bytes_of(volume["emptyDir"]["sizeLimit"]),
                self.bytes_of(container["resources"]["limits"]["memory"]),
            )

    @staticmethod
    def bytes_of(text):
        scale = {"Mi": 1 << 20, "Gi": 1 << 30}[text[-2:]]
        return int(text[:-2]) * scale

    def test_all_containers_ask_for_what_they_need(self):
        for overlay in self.each():
            for where, _, container in overlay.containers:
                resources = container["resources"]
                self.assertIn("cpu", resources["requests"], where)
                self.assertIn("memory", resources["requests"], where)
                self.assertIn("memory", resources["limits"], where)

    def test_gpus_are_asked_for_as_often_as_they_are_used(self):
        (gpu,) = [o for o in self.overlays if o.name == "gpu"]
        ((_, _, container),) = [
            c for c in gpu.containers if c[2]["name"] == "worker"
        ]
        settings = manifests.environment(container)
        self.assertEqual(
            container["resources"]["limits"]["nvidia.com/gpu"],
            settings["COXSWAIN_GPUS"],
        )
        self.assertNotIn("COXSWAIN_NPROC", settings)

    def test_the_jobset_counts_its_attempts(self):
        (jobset,) = [o for o in self.overlays if o.name == "jobset"]
        ((_, _, container),) = [
            c for c in jobset.containers if c[2]["name"] == "worker"
        ]
        (attempt,) = [
            e for e in container["env"] if e["name"] == "COXSWAIN_ATTEMPT"
        ]
        self.assertEqual(
            attempt["valueFrom"]["fieldRef"]["fieldPath"],
            "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']",
        )
        (thing,) = jobset.of_kind("JobSet")
        self.assertEqual(thing["apiVersion"], "jobset.x-k8s.io/v1alpha2")

    def test_the_monitor_names_a_port_of_the_service(self):
        (overlay,) = [
            o for o in self.overlays if o.name == "service-monitor"
        ]
        (monitor,) = overlay.of_kind("ServiceMonitor")
        services = [
            s
            for s in overlay.of_kind("Service")
            if selects(
                monitor["spec"]["selector"]["matchLabels"],
                s["metadata"]["labels"],
            )
        ]
        self.assertEqual(len(services), 1)
        ports = {p["name"]: p["port"] for p in services[0]["spec"]["ports"]}
        (endpoint,) = monitor["spec"]["endpoints"]
        coordinator = manifests.one(
            overlay.objects, "StatefulSet", "coxswain-coordinator"
        )
        (container,) = coordinator["spec"]["template"]["spec"]["containers"]
        listen = manifests.environment(container)["COXSWAIN_HTTP"]
        self.assertTrue(listen.endswith(":%d" % ports[endpoint["port"]]))
        # Alerts and dashboard go by our label `job`.
        self.assertIs(endpoint["honorLabels"], True)

    def test_two_coordinators_share_what_they_must(self):
        (ha,) = [o for o in self.overlays if o.name == "etcd-ha"]
        thing = manifests.one(
            ha.objects, "StatefulSet", "coxswain-coordinator"
        )
        self.assertEqual(thing["spec"]["replicas"], 2)
        self.assertNotIn("volumeClaimTemplates", thing["spec"])
        claim = manifests.one(
            ha.objects, "PersistentVolumeClaim", "coxswain-checkpoints"
        )
        self.assertEqual(claim["spec"]["accessModes"], ["ReadWriteMany"])
        names = [
            "coxswain-coordinator-%d.coxswain-coordinator:7077" % i
            for i in range(2)
        ]
        for where, _, container in ha.containers:
            if manifests.is_own(container):
                self.assertEqual(
                    manifests.environment(container)["COXSWAIN_COORDINATOR"],
                    ",".join(names),
                    where,
                )


if __name__ == "__main__":
    if manifests.kubectl() is None:
        print("SKIPPED: no kubectl (tools/install_deps.sh --tests has it):")
        print("NOTHING of deploy/kubernetes was checked")
        sys.exit(0)
    unittest.main(verbosity=2)
