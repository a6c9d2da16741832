"""The manifests of deploy/kubernetes, as kubectl renders them."""

import os
import shutil
import subprocess

import yaml

WORKSPACE = os.path.abspath(
    os.path.join(os.path.realpath(__file__), "../../../..")
)
ROOT = os.path.join(WORKSPACE, "deploy/kubernetes")
OVERLAYS = sorted(os.listdir(os.path.join(ROOT, "overlays")))
# Of the containers whose program is ours.
OWN_IMAGES = ("coxswain-coordinator", "coxswain-worker", "coxswain-worker-cuda")


def kubectl():
    """Where it is; None: there is none."""
    return shutil.which("kubectl")


def render(folder):
    """The objects of a kustomization."""
    done = subprocess.run(
        [kubectl(), "kustomize", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
    )
    if done.returncode != 0:
        raise RuntimeError(
            "kubectl kustomize %s: %s" % (folder, done.stderr.decode())
        )
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def render_overlay(name):
    return render(os.path.join(ROOT, "overlays", name))


def name_of(thing):
    return "%s/%s" % (thing["kind"], thing["metadata"]["name"])


def one(objects, kind, name):
    (found,) = [o for o in objects if name_of(o) == "%s/%s" % (kind, name)]
    return found


def job_specs(thing):
    """(name, spec) of each Job that an object is or makes."""
    if thing["kind"] == "Job":
        yield thing["metadata"]["name"], thing["spec"]
    elif thing["kind"] == "JobSet":
        for job in thing["spec"]["replicatedJobs"]:
            yield (
                "%s-%s" % (thing["metadata"]["name"], job["name"]),
                job["template"]["spec"],
            )


def pod_templates(thing):
    """The pod templates of an object that makes pods."""
    if thing["kind"] == "StatefulSet":
        yield thing["spec"]["template"]
    for _, spec in job_specs(thing):
        yield spec["template"]


def all_templates(objects):
    """(name of the object, template) of all of them."""
    return [
        (name_of(thing), template)
        for thing in objects
        for template in pod_templates(thing)
    ]


def container_of(template, name):
    """The container of a pod that has that name."""
    (found,) = [c for c in template["spec"]["containers"] if c["name"] == name]
    return found


def is_own(container):
    return container["image"].split(":")[0] in OWN_IMAGES


def environment(container):
    """What the container sets to a fixed value."""
    return {
        entry["name"]: entry["value"]
        for entry in container.get("env", [])
        if "value" in entry
    }


def seconds(text):
    """Of a duration such as 90s, 10m or 500ms."""
    for unit, scale in (("ms", 0.001), ("s", 1), ("m", 60), ("h", 3600)):
        number = text[: -len(unit)]
        if text.endswith(unit) and number.replace(".", "").isdigit():
            return float(number) * scale
    return float(text)
