#!/usr/bin/env python3
"""Writes the .cc that holds the status page's files.

embed_files.py OUT ROOT FILE...: defines FindStaticFile() of
server/http/page/static_files.h. A file's path in the URL is its path after
ROOT; index.html is "/".
"""

import sys

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

HEAD = """\
#include "server/http/page/static_files.h"

#include "absl/strings/string_view.h"

namespace coxswain::server {
namespace {

struct NamedFile {
  absl::string_view path;
  StaticFile file;
};

constexpr NamedFile kFiles[] = {
"""

TAIL = """\
};

}  // namespace

std::optional<StaticFile> FindStaticFile(absl::string_view path) {
  for (const NamedFile& named : kFiles) {
    if (named.path == path) return named.file;
  }
  return std::nullopt;
}

}  // namespace coxswain::server
"""


def url_path(name, root):
    if root not in name:
        sys.exit("embed_files.py: %s is not under %s" % (name, root))
    path = name.split(root, 1)[1]
    return "/" if path == "/index.html" else path


def literal(data):
    """One C++ string literal per line, every byte as it is in the file."""

    def escaped(byte):
        if byte == 10:
            return "\\n"
        if byte in b'"\\?':
            return "\\" + chr(byte)
        # Three octal digits: what follows cannot be taken for one more.
        return chr(byte) if 32 <= byte < 127 else "\\%03o" % byte

    lines = data.splitlines(keepends=True) or [b""]
    return "\n".join(
        '     "%s"' % "".join(escaped(byte) for byte in line) for line in lines
    )


def entry(name, root):
    suffix = name.rsplit(".", 1)[-1]
    if suffix not in TYPES:
        sys.exit("embed_files.py: %s: no content type for it" % name)
    with open(name, "rb") as file:
        data = file.read()
    content = "absl::string_view(\n%s,\n     %d)" % (literal(data), len(data))
    return '    {"%s", {"%s", %s}},\n' % (
        url_path(name, root),
        TYPES[suffix],
        content,
    )


def main(out, root, *names):
    with open(out, "w", encoding="ascii") as file:
        file.write(HEAD)
        for name in sorted(names):
            file.write(entry(name, root))
        file.write(TAIL)


if __name__ == "__main__":
    main(*sys.argv[1:])
