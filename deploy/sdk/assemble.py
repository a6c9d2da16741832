#!/usr/bin/env python3
"""Writes the folder of the SDK; called by the rule of bazel/sdk.bzl.

usage: assemble.py ORDER.json FOLDER
"""

import json
import os
import re
import shutil
import subprocess
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
VERSION = re.compile(r'kVersion\[\] = "([^"]+)"')

PKG_CONFIG = """\
prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include/coxswain
libdir=${{prefix}}/lib

Name: coxswain
Description: Worker library of Coxswain, for data-parallel training
Version: {version}
Cflags: -I${{includedir}}{defines}
Libs: -L${{libdir}} -lcoxswain {libraries}
"""

CMAKE = """\
# find_package(Coxswain) gives Coxswain::coxswain: the static library, and what
# it was built to be linked with. C++17 or later.
get_filename_component(
  _coxswain_prefix "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
if(NOT TARGET Coxswain::coxswain)
  add_library(Coxswain::coxswain STATIC IMPORTED)
  set_target_properties(Coxswain::coxswain PROPERTIES
    IMPORTED_LOCATION "${{_coxswain_prefix}}/lib/libcoxswain.a"
    INTERFACE_INCLUDE_DIRECTORIES "${{_coxswain_prefix}}/include/coxswain"
    INTERFACE_COMPILE_DEFINITIONS "{defines}"
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_LINK_LIBRARIES "{libraries}")
endif()
unset(_coxswain_prefix)
"""

# Until 1.0 a minor version may change headers.
CMAKE_VERSION = """\
set(PACKAGE_VERSION "{version}")
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
set(PACKAGE_VERSION_COMPATIBLE FALSE)
if("${{PACKAGE_FIND_VERSION_MAJOR}}.${{PACKAGE_FIND_VERSION_MINOR}}" STREQUAL
   "{series}" AND NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
"""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(folder, name, text):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def needed_headers(public, headers):
    """The public headers and what they include, as {name: path}."""
    found = {}
    waiting = list(public)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        if name not in headers:
            sys.exit("assemble.py: no library offers the header " + name)
        found[name] = headers[name]
        waiting += [
            included for included in INCLUDE.findall(read(headers[name]))
            if included in headers]
    return found


def last_of_each(words):
    """Drops repeats and keeps the last: what link order asks for."""
    return list(reversed(list(dict.fromkeys(reversed(words)))))


def merge(archives, target):
    """One archive of all; members of one name stay apart."""
    script = ["CREATE " + target]
    script += ["ADDLIB " + archive for archive in archives]
    script += ["SAVE", "END", ""]
    subprocess.run(["ar", "-M"], input="\n".join(script), text=True, check=True)
    subprocess.run(["ranlib", target], check=True)


def main(arguments):
    order = json.loads(read(arguments[0]))
    folder = arguments[1]
    version = VERSION.search(read(order["version"])).group(1)
    headers = dict(order["headers"])
    for name, path in needed_headers(order["public"], headers).items():
        target = os.path.join(folder, "include/coxswain", name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(path, target)
    options = last_of_each(order["link_options"])
    names = {
        "version": version,
        "series": ".".join(version.split(".")[:2]),
        "libraries": " ".join(options),
        "defines": "".join(" -D" + define for define in order["defines"]),
    }
    write(folder, "lib/pkgconfig/coxswain.pc", PKG_CONFIG.format(**names))
    names["libraries"] = ";".join(options)
    names["defines"] = ";".join(order["defines"])
    write(folder, "lib/cmake/Coxswain/CoxswainConfig.cmake",
          CMAKE.format(**names))
    write(folder, "lib/cmake/Coxswain/CoxswainConfigVersion.cmake",
          CMAKE_VERSION.format(**names))
    merge(order["archives"], os.path.join(folder, "lib/libcoxswain.a"))


if __name__ == "__main__":
    main(sys.argv[1:])
