"""What the libraries in the wheel are: packages, terms, bill of materials."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse

from wheel_files import read, run, write

# Libraries of which only headers are used: compiled into ours.
HEADERS_OF = (
    "libcli11-dev", "libcpp-httplib-dev", "nlohmann-json3-dev",
    "libprometheus-cpp-dev", "prometheus-cpp-dev",
)
# /lib is /usr/lib, and packages name one or the other.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu/", "/usr/lib/", "/lib/x86_64-linux-gnu/",
    "/lib/",
)
COMMON_LICENSES = "/usr/share/common-licenses/"

LIBRARIES = """\
The libraries in coxswain.libs are those of Debian 12, unchanged but for their
names, where they look for each other, and the version of one symbol of
libstdc++. Each is loaded as a file of its own: put another build of it in its
place, under the same name, and that one is used. The sources of all of them
are Debian's source packages of these versions.

file | package | version | source package | terms
"""


def packages_of(names):
    """Returns the installed Debian packages of libraries, by file name."""
    owners = {}
    # Fails where there is nothing at one of the paths, and lists the others.
    found = subprocess.run(
        ["dpkg-query", "--search"]
        + [folder + name for folder in LIBRARY_FOLDERS for name in names],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        check=False,
    ).stdout
    for line in found.splitlines():
        package, _, path = line.rpartition(": ")
        owners.setdefault(os.path.basename(path), set()).add(
            package.split(":")[0]
        )
    for name in names:
        if len(owners.get(name, ())) != 1:
            sys.exit(
                "build_wheel.sh: %s is of the packages %s, not of one: its "
                "terms are not known" % (name, sorted(owners.get(name, ())))
            )
    return {name: owners[name].pop() for name in names}


def add_terms(licenses, package):
    """Copies the terms of a package; returns (version, source package)."""
    path = "/usr/share/doc/%s/copyright" % package
    if not os.path.exists(path):
        sys.exit(
            "build_wheel.sh: %s is missing (is dpkg configured to leave "
            "out documentation?): apt-get install --reinstall %s"
            % (path, package)
        )
    folder = os.path.join(licenses, "debian", package)
    os.makedirs(folder)
    shutil.copyfile(path, os.path.join(folder, "copyright"))
    # They refer to texts that every Debian system has.
    for name in set(
        re.findall(
            re.escape(COMMON_LICENSES) + r"([A-Za-z0-9.+-]*\w)",
            read(path),
        )
    ):
        if os.path.isfile(COMMON_LICENSES + name):
            common = os.path.join(licenses, "common-licenses")
            os.makedirs(common, exist_ok=True)
            shutil.copyfile(
                COMMON_LICENSES + name, os.path.join(common, name)
            )
    return run(
        "dpkg-query", "--show", "--showformat",
        "${Version} ${source:Package}=${source:Version}\n", package,
    ).split()[:2]


def installed(package):
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${db:Status-Status}",
         package],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        check=False,
    )
    return done.stdout == "installed"


def add_licenses(info, license_of_ours, libraries):
    """What may be done with the libraries, each of them by its package.

    Returns {library: package} and {package: (version, source package)}.
    """
    licenses = os.path.join(info, "licenses")
    os.makedirs(licenses)
    shutil.copyfile(license_of_ours, os.path.join(licenses, "LICENSE"))
    # auditwheel's names have a hash in them.
    plain = {
        name: re.sub(r"-[0-9a-f]{8}(?=\.)", "", name) for name in libraries
    }
    packages = packages_of(sorted(plain.values()))
    owners = {name: packages[plain[name]] for name in libraries}
    headers = [package for package in HEADERS_OF if installed(package)]
    facts = {
        package: add_terms(licenses, package)
        for package in sorted(set(owners.values()) | set(headers))
    }
    rows = sorted(owners.items()) + [("(headers)", name) for name in headers]
    write(
        os.path.join(licenses, "libraries.txt"),
        LIBRARIES + "".join(
            "%s | %s | %s | %s | debian/%s/copyright\n"
            % (name, package, *facts[package], package)
            for name, package in rows
        ),
    )
    return owners, facts


def add_bill(info, version, owners, facts):
    """A bill of materials (CycloneDX): what is in the wheel besides ours.

    auditwheel would write one, too, but asks dpkg for each library alone,
    which takes longer than all the rest.
    """
    whole = "pkg:pypi/coxswain@" + version
    component = {
        "type": "library", "bom-ref": whole, "name": "coxswain",
        "version": version, "purl": whole,
    }
    parts = []
    for package, (version_there, _) in sorted(facts.items()):
        purl = "pkg:deb/debian/%s@%s" % (
            urllib.parse.quote(package, safe=""),
            urllib.parse.quote(version_there, safe=""),
        )
        parts.append({
            "type": "library", "bom-ref": purl, "name": package,
            "version": version_there, "purl": purl,
            "properties": [
                {"name": "coxswain:file", "value": name}
                for name, owner in sorted(owners.items()) if owner == package
            ],
        })
    references = [part["bom-ref"] for part in parts]
    bill = {
        "bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1,
        "metadata": {"component": component},
        "components": parts,
        "dependencies": [{"ref": whole, "dependsOn": references}]
        + [{"ref": reference} for reference in references],
    }
    write(
        os.path.join(info, "sboms", "coxswain.cdx.json"),
        json.dumps(bill, indent=1) + "\n",
    )
