"""Writes the wheel; called by build_wheel.sh, with auditwheel's interpreter.

First a wheel of the package, the library and the program; then auditwheel adds
the libraries that these link, and fails if one of them needs a newer system
than the tag says; then come the terms of those libraries.
"""

import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

import symbol_version

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLATFORM = "manylinux_2_34_x86_64"
# Libraries of which only headers are used: compiled into ours.
HEADERS_OF = (
    "libcli11-dev", "libcpp-httplib-dev", "nlohmann-json3-dev",
    "libprometheus-cpp-dev", "prometheus-cpp-dev",
)
# /lib is /usr/lib, and packages say one or the other.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu/", "/usr/lib/", "/lib/x86_64-linux-gnu/",
    "/lib/",
)
COMMON_LICENSES = "/usr/share/common-licenses/"

METADATA = """\
Metadata-Version: 2.4
Name: coxswain
Version: {version}
Summary: Coordinates gradient exchange for data-parallel training
License: Apache-2.0; the libraries in coxswain.libs have terms of their own
{license_files}
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{description}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: coxswain {version}
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""

ENTRY_POINTS = """\
[console_scripts]
coxswain = coxswain._program:main

[torchrun.handlers]
coxswain = coxswain.torch.rendezvous:creator
"""

LIBRARIES = """\
The libraries in coxswain.libs are those of Debian 12, unchanged but for their
names, where they look for each other, and the version of one symbol of
libstdc++. Each is loaded as a file of its own: put another build of it in its
place, under the same name, and that one is used. The sources of all of them
are Debian's source packages of these versions.

file | package | version | source package | terms
"""


def run(*command):
    """Returns what a program prints; says what it does if it fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(
            "assemble_wheel.py: %s failed:\n%s"
            % (" ".join(command), done.stdout + done.stderr)
        )
    return done.stdout


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def add_package(tree, library, program):
    """The Python files, and what they load and start."""
    package = os.path.join(ROOT, "python", "coxswain")
    shutil.copytree(
        package,
        os.path.join(tree, "coxswain"),
        ignore=lambda folder, names: [
            name for name in names
            if not name.endswith((".py", ".typed"))
            and not os.path.isdir(os.path.join(folder, name))
            or name in ("__pycache__", "_native")
        ],
    )
    native = os.path.join(tree, "coxswain", "_native")
    os.mkdir(native)
    for path, mode in ((library, 0o644), (program, 0o755)):
        target = os.path.join(native, os.path.basename(path))
        run("strip", "--strip-unneeded", "-o", target, path)
        symbol_version.bind_to_older(target)
        os.chmod(target, mode)


def bind_copies(folder, files):
    """Makes copies of the libraries that need the older symbol version."""
    os.mkdir(folder)
    found = dict(
        re.findall(r"(\S+) => (/\S+)", "".join(run("ldd", x) for x in files))
    )
    for soname, path in found.items():
        if soname.startswith("libstdc++.so"):
            continue
        copy = os.path.join(folder, os.path.basename(os.path.realpath(path)))
        shutil.copyfile(path, copy)
        if not symbol_version.bind_to_older(copy):
            os.remove(copy)
        elif os.path.basename(copy) != soname:
            os.symlink(os.path.basename(copy), os.path.join(folder, soname))


def add_metadata(info, version, platform):
    """All files of the .dist-info folder but RECORD, which `wheel` writes."""
    licenses = os.path.join(info, "licenses")
    names = sorted(
        os.path.relpath(os.path.join(folder, name), licenses)
        for folder, _, names in os.walk(licenses)
        for name in names
    )
    write(
        os.path.join(info, "METADATA"),
        METADATA.format(
            version=version,
            license_files="\n".join("License-File: " + name for name in names),
            description=read(os.path.join(ROOT, "python", "README.md")),
        ),
    )
    write(
        os.path.join(info, "WHEEL"),
        WHEEL.format(version=version, platform=platform),
    )
    write(os.path.join(info, "entry_points.txt"), ENTRY_POINTS)


def packages_of(names):
    """The installed Debian packages of libraries, by their files' names."""
    owners = {}
    # Fails where there is nothing at one of the paths, and lists the others.
    said = subprocess.run(
        ["dpkg-query", "--search"]
        + [folder + name for folder in LIBRARY_FOLDERS for name in names],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        check=False,
    ).stdout
    for line in said.splitlines():
        package, _, path = line.rpartition(": ")
        owners.setdefault(os.path.basename(path), set()).add(
            package.split(":")[0]
        )
    for name in names:
        if len(owners.get(name, ())) != 1:
            sys.exit(
                "assemble_wheel.py: %s is of the packages %s, not of one: its "
                "terms are not known" % (name, sorted(owners.get(name, ())))
            )
    return {name: owners[name].pop() for name in names}


def add_terms(licenses, package):
    """Copies the terms of a package; returns (version, source package)."""
    path = "/usr/share/doc/%s/copyright" % package
    if not os.path.exists(path):
        sys.exit(
            "assemble_wheel.py: %s is missing (dpkg was told to leave out "
            "documentation?): apt-get install --reinstall %s"
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


def add_licenses(info, libraries):
    """What may be done with the libraries, each of them by its package."""
    licenses = os.path.join(info, "licenses")
    os.makedirs(licenses)
    shutil.copyfile(
        os.path.join(ROOT, "LICENSE"), os.path.join(licenses, "LICENSE")
    )
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


def complete_bill(info, owners, facts):
    """Adds to auditwheel's bill of materials what it did not find.

    It knows nothing of our copies, nor of a package that has a file in /lib.
    """
    path = os.path.join(info, "sboms", "auditwheel.cdx.json")
    bill = json.loads(read(path))
    listed = {
        (part["name"], part["version"]) for part in bill["components"]
    }
    for package in sorted(set(owners.values())):
        version = facts[package][0]
        if (package, version) in listed:
            continue
        purl = "pkg:deb/debian/%s@%s" % (
            urllib.parse.quote(package, safe=""),
            urllib.parse.quote(version, safe=""),
        )
        bill["components"].append({
            "type": "library", "bom-ref": purl, "name": package,
            "version": version, "purl": purl,
        })
        bill["dependencies"][0]["dependsOn"].append(purl)
        bill["dependencies"].append({"ref": purl})
    write(path, json.dumps(bill))


def main(arguments):
    parser = argparse.ArgumentParser()
    for name in ("library", "program", "version", "out"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args(arguments)
    # Nothing in the wheel says when it was built.
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1700000000")
    wheel = (sys.executable, "-m", "wheel")
    with tempfile.TemporaryDirectory() as work:
        name = "coxswain-" + options.version
        tree = os.path.join(work, "first", name)
        info = os.path.join(tree, name + ".dist-info")
        add_package(tree, options.library, options.program)
        add_metadata(info, options.version, "linux_x86_64")
        run(*wheel, "pack", tree, "--dest-dir", work)
        (plain,) = glob.glob(work + "/*.whl")

        # Where auditwheel looks for libraries first.
        bound = os.path.join(work, "bound")
        bind_copies(bound, (options.library, options.program))
        os.environ["AUDITWHEEL_LD_LIBRARY_PATH"] = bound
        repaired = os.path.join(work, "repaired")
        run(sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM,
            "--zip-compression-level", "0", "--wheel-dir", repaired, plain)
        (grafted,) = glob.glob(repaired + "/*.whl")
        run(*wheel, "unpack", "--dest", os.path.join(work, "second"), grafted)
        tree = os.path.join(work, "second", name)
        info = os.path.join(tree, name + ".dist-info")
        libraries = sorted(os.listdir(os.path.join(tree, "coxswain.libs")))
        owners, facts = add_licenses(info, libraries)
        complete_bill(info, owners, facts)
        add_metadata(info, options.version, PLATFORM)

        done = os.path.join(work, "done")
        os.mkdir(done)
        run(*wheel, "pack", tree, "--dest-dir", done)
        (path,) = glob.glob(done + "/*.whl")
        print(shutil.copy(path, options.out))


if __name__ == "__main__":
    main(sys.argv[1:])
