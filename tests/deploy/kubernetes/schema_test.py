#!/usr/bin/env python3
"""Validates every rendered object against the API of Kubernetes itself.

The schemas (strict: unknown fields are errors) come from the pip package that
requirements.txt names, which tools/fetch_kubernetes_schemas.sh downloads; it is
read where it lies, never installed or run. Without it, or without kubectl or
jsonschema, nothing is validated, and this reports it.
"""

import copy
import glob
import json
import os
import sys
import unittest
import zipfile

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import manifests  # noqa: E402

try:
    import jsonschema
except ImportError:
    jsonschema = None

# The oldest that docs/kubernetes.md promises, and the two newest.
VERSIONS = ("1.31", "1.36", "1.37")
# Objects of other projects: no schema here (manifests_test looks at them).
FOREIGN = {
    "cert-manager.io",
    "jobset.x-k8s.io",
    "monitoring.coreos.com",
}
FOLDER = "kubernetes_validate/kubernetes-json-schema"
ADDRESS = "https://kubernetes.io/api/_definitions.json"


def package():
    found = glob.glob(
        os.path.join(
            manifests.WORKSPACE, ".cache/kubernetes/kubernetes_validate-*.whl"
        )
    )
    return found[0] if found else None


class Api:
    """The schemas of one version of Kubernetes."""

    def __init__(self, wheel, version):
        path = "%s/v%s.0-local-strict/_definitions.json" % (FOLDER, version)
        self.schemas = json.loads(wheel.read(path))
        self.kinds = {}
        for name, schema in self.schemas["$defs"].items():
            for kind in schema.get("x-kubernetes-group-version-kind", []):
                parts = [kind["group"], kind["version"]]
                version = "/".join(part for part in parts if part)
                self.kinds[version, kind["kind"]] = name

    def findings(self, thing):
        name = self.kinds.get((thing["apiVersion"], thing["kind"]))
        if name is None:
            return ["no such kind"]
        resolver = jsonschema.RefResolver(
            ADDRESS, self.schemas, store={ADDRESS: self.schemas}
        )
        validator = jsonschema.Draft202012Validator(
            {"$ref": "%s#/$defs/%s" % (ADDRESS, name)}, resolver=resolver
        )
        return [
            "%s: %s" % ("/".join(map(str, error.absolute_path)), error.message)
            for error in validator.iter_errors(thing)
        ]


class SchemaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with zipfile.ZipFile(package()) as wheel:
            cls.apis = {version: Api(wheel, version) for version in VERSIONS}
        cls.overlays = {
            name: manifests.render_overlay(name) for name in manifests.OVERLAYS
        }

    def test_every_object_is_valid(self):
        checked = set()
        for name, objects in self.overlays.items():
            for thing in objects:
                if thing["apiVersion"].split("/")[0] in FOREIGN:
                    continue
                for version, api in self.apis.items():
                    where = (name, manifests.name_of(thing), version)
                    self.assertEqual(api.findings(thing), [], where)
                    checked.add(where)
        self.assertGreater(len(checked), 100)
        print("%d objects validated, of each version as many" % (
            len(checked) / len(VERSIONS)
        ))

    def test_the_pods_of_a_jobset_are_valid_as_a_jobs(self):
        jobset = manifests.one(
            self.overlays["jobset"], "JobSet", "coxswain-train"
        )
        for name, spec in manifests.job_specs(jobset):
            job = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name},
                "spec": spec,
            }
            for version, api in self.apis.items():
                self.assertEqual(api.findings(job), [], version)

    def test_what_is_wrong_is_found(self):
        spoil = [
            lambda job: job["spec"].update(completion=3),
            lambda job: job["spec"].update(completions="three"),
            lambda job: job.update(apiVersion="batch/v9"),
            lambda job: job["spec"]["template"]["spec"]["containers"][0].pop(
                "name"
            ),
            lambda job: job["spec"]["template"]["spec"]["containers"][0][
                "env"
            ].append({"name": "X", "value": 1}),
        ]
        good = manifests.one(
            self.overlays["cpu-demo"], "Job", "coxswain-train"
        )
        for number, change in enumerate(spoil):
            bad = copy.deepcopy(good)
            change(bad)
            for version, api in self.apis.items():
                self.assertTrue(api.findings(bad), (number, version))


def missing():
    if manifests.kubectl() is None:
        return "kubectl (tools/install_deps.sh --tests installs one)"
    if jsonschema is None:
        return "the Python module jsonschema (Debian: python3-jsonschema)"
    if package() is None:
        return "the schemas (tools/fetch_kubernetes_schemas.sh fetches them)"
    return None


if __name__ == "__main__":
    if missing() is not None:
        print("SKIPPED: there is no %s here:" % missing())
        print("NOTHING was validated against the Kubernetes API")
        sys.exit(0)
    unittest.main(verbosity=2)
