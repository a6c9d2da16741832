#!/usr/bin/env python3
"""Writes the folder of the SDK; called by the rule of bazel/sdk.bzl.

usage: assemble.py ORDER.json FOLDER

Headers include each other as coxswain/..., so that programs need one include
folder and no other name than this one is taken in it. Fails, with the chain of
includes, if a header includes anything but headers of the SDK, of Abseil and of
the C++ standard library: a program is built without those of protobuf and gRPC.

The C interface comes as it is: include/coxswain.h and lib/libcoxswain_c.so.
"""

import json
import os
import re
import shutil
import subprocess
import sys

INCLUDE = re.compile(
    r'^(\s*#\s*include\s*)(["<])([^">]+)[">]', re.MULTILINE)
VERSION = re.compile(r'kVersion\[\] = "([^"]+)"')

PKG_CONFIG = """\
prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include
libdir=${{prefix}}/lib

Name: coxswain
Description: Worker library of Coxswain, for data-parallel training
Version: {version}
Cflags: -I${{includedir}}{defines}
Libs: -L${{libdir}} -lcoxswain {libraries}
"""

C_PKG_CONFIG = """\
prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include
libdir=${{prefix}}/lib

Name: coxswain-c
Description: C interface of Coxswain, for data-parallel training
Version: {version}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -lcoxswain_c
"""

CMAKE = """\
# find_package(Coxswain) gives Coxswain::coxswain: the static library, and what
# it was built to be linked with. C++17 or later. And Coxswain::c: the library
# of the C interface.
get_filename_component(
  _coxswain_prefix "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
if(NOT TARGET Coxswain::coxswain)
  add_library(Coxswain::coxswain STATIC IMPORTED)
  set_target_properties(Coxswain::coxswain PROPERTIES
    IMPORTED_LOCATION "${{_coxswain_prefix}}/lib/libcoxswain.a"
    INTERFACE_INCLUDE_DIRECTORIES "${{_coxswain_prefix}}/include"
    INTERFACE_COMPILE_DEFINITIONS "{defines}"
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_LINK_LIBRARIES "{libraries}")
endif()
if(NOT TARGET Coxswain::c)
  add_library(Coxswain::c SHARED IMPORTED)
  set_target_properties(Coxswain::c PROPERTIES
    IMPORTED_LOCATION "${{_coxswain_prefix}}/lib/libcoxswain_c.so"
    IMPORTED_SONAME libcoxswain_c.so
    INTERFACE_INCLUDE_DIRECTORIES "${{_coxswain_prefix}}/include")
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


def belongs_elsewhere(bracket, name):
    """Whether the header is of Abseil or of the C++ standard library."""
    if name.startswith("absl/"):
        return True
    return bracket == "<" and re.fullmatch("[a-z_]+", name) is not None


def needed_headers(public, headers):
    """The public headers and what they include, as {name: text}."""
    texts = {}
    refused = []
    # Breadth first: the chains that errors name are the shortest.
    waiting = [[name] for name in public]
    while waiting:
        chain = waiting.pop(0)
        name = chain[-1]
        if name in texts:
            continue
        if name not in headers or name.endswith(".pb.h"):
            refused.append(" -> ".join(chain))
            continue
        texts[name] = read(headers[name])
        waiting += [
            chain + [included]
            for _, bracket, included in INCLUDE.findall(texts[name])
            if not belongs_elsewhere(bracket, included)]
    if refused:
        sys.exit(
            "assemble.py: the headers of the SDK include each other, Abseil "
            "and the C++ standard library, and nothing else. Declare the type "
            "that is needed, or move its use into a .cc file:\n  " +
            "\n  ".join(refused))
    return texts


def as_installed(text, names):
    """The text of a header that includes these others below coxswain/."""
    def renamed(match):
        before, _, name = match.groups()
        if name not in names:
            return match.group()
        return '%s"coxswain/%s"' % (before, name)

    return INCLUDE.sub(renamed, text)


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
    texts = needed_headers(order["public"], headers)
    for name, text in texts.items():
        write(folder, os.path.join("include/coxswain", name),
              as_installed(text, texts))
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
    write(folder, "lib/pkgconfig/coxswain-c.pc", C_PKG_CONFIG.format(**names))
    write(folder, "include/coxswain.h", read(order["c_header"]))
    shutil.copyfile(order["c_library"],
                    os.path.join(folder, "lib/libcoxswain_c.so"))
    merge(order["archives"], os.path.join(folder, "lib/libcoxswain.a"))


if __name__ == "__main__":
    main(sys.argv[1:])
