#!/usr/bin/env python3
"""Checks the rules that the compiler does not.

The layers and the one way they depend, in includes and in BUILD files; that
folders depend on each other without a circle; which may include gRPC, libtorch,
CUDA and NCCL; what is banned; the form of files; and the sections and the index
of decisions.
Each rule is also run over small trees that break it, so a rule that finds
nothing is known to work.

Run as a test it finds the workspace behind its WORKSPACE file; it also takes
the workspace's path as an argument.
"""

import fnmatch
import os
import re
import sys
import unittest

# Layer -> the layers it may use, besides itself.
# Composition roots use the libraries, but not each other.
LIBRARIES = {
    "base", "proto", "transport", "schedule", "server", "client", "hooks",
    "capi", "train",
}
LAYERS = {
    "base": set(),
    "proto": {"base"},
    "transport": {"base", "proto"},
    "schedule": {"base", "proto", "transport"},
    "server": {"base", "proto", "transport", "schedule"},
    "client": {"base", "proto", "transport", "schedule"},
    "hooks": {"base", "proto", "schedule", "client"},
    "capi": {"base", "proto", "transport", "schedule", "client", "hooks"},
    "train": {"base", "proto", "transport", "schedule", "client", "hooks"},
    "python": {"capi"},
    "cli": LIBRARIES,
    "examples": LIBRARIES,
    "deploy": LIBRARIES,
    "tests": LIBRARIES | {"python", "cli", "examples", "deploy"},
}

# Which folders may include the headers that begin so (tests always may).
RESERVED = {
    # etcd is spoken over gRPC: it is a vendor with a door of its own.
    "grpcpp/": (
        "server/rpc/",
        "server/state/etcd/",
        "client/rpc/",
        "client/fallback/fallback_server",
        # What both of these share: how a server listens, and messages in
        # gRPC's own buffers.
        "transport/",
        "base/grpc_status",
        "cli/",
    ),
    "grpc/": (
        "server/rpc/",
        "client/rpc/",
        "client/fallback/fallback_server",
        "transport/",
        "base/grpc_status",
        "cli/",
    ),
    "torch/": ("client/torch/", "train/torch/", "examples/"),
    "ATen/": ("client/torch/", "examples/"),
    "c10/": ("client/torch/", "examples/"),
    # NCCL speaks of CUDA's streams and errors.
    "cuda": ("client/device/", "client/comm/nccl/"),
    "nccl.h": ("client/comm/nccl/",),
    "gloo/": (),  # a peer of the benchmarks
    "httplib.h": ("server/http/",),
    "prometheus/": ("server/metrics/",),
    "openssl/": (
        "base/certificate_authority",
        "base/certificates",
        "base/openssl",
        "base/public_key",
        "client/comm/tcp/tls_",
    ),
}
RESERVED_DEPS = {
    "//third_party:gloo": (),
    "//third_party:torch": ("client/torch/", "train/torch/", "examples/"),
}

INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')
LABEL = re.compile(r'"(//[^"]*)"')
GLOB = re.compile(r"glob\([^()]*\)")
NAMESPACE = re.compile(r"(?:inline )?namespace ([\w:]*) ?\{$")
# At the outermost level: within a class names are the class's own.
CLASS = re.compile(
    r"(?:template <.*> )?(?:class|struct) (?:[A-Z_]+(?:\(.*\))? )?"
    r"(\w+)(?: final)?(?: :[^;]*)? ?\{"
)
MAX_COLUMNS = 80

# Comments, raw strings, strings and characters.
UNSPOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""",
    re.DOTALL,
)


def is_test(path):
    name = os.path.basename(path)
    return path.startswith("tests/") or "_test." in name


def is_source(path):
    return path.endswith((".h", ".c", ".cc", ".cu", ".cuh"))


def without_comments(text):
    """Blanks comments and literals, and keeps the lines."""
    return UNSPOKEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


class Ban:
    def __init__(self, name, pattern, applies, instead):
        self.name = name
        self.pattern = re.compile(pattern)
        self.applies = applies
        self.instead = instead


def _may_be_nondeterministic(path):
    return path.startswith("base/") or path.endswith("main.cc")


BANS = [
    Ban(
        "sleep",
        r"\b(sleep_for|sleep_until|usleep|nanosleep|SleepFor)\b",
        is_test,
        "wait for a condition with a deadline, or advance a fake clock",
    ),
    Ban(
        "throw",
        r"\bthrow\b",
        # A test may play a library that throws.
        lambda path: not is_test(path),
        "errors are values: return absl::Status",
    ),
    Ban(
        "wall clock",
        r"\babsl::Now\s*\(",
        lambda path: not _may_be_nondeterministic(path),
        "take the clock of base/clock.h",
    ),
    Ban(
        "randomness",
        r"\bstd::(random_device|rand)\b",
        lambda path: not _may_be_nondeterministic(path),
        "take the source of base/random.h",
    ),
    Ban(
        "log once",
        r"\bLogWarningOnce\s*\(",
        # Its memory is for the whole process and never forgets.
        lambda path: path.startswith(
            (
                "base/", "proto/", "transport/", "server/", "client/rpc/",
                "client/fallback/",
            )
        )
        and not path.startswith("base/logging.")
        and not is_test(path),
        "peers can cause this: use LogRate of base/logging.h",
    ),
    Ban(
        "dump",
        r"\b(\w*DebugString|TextFormat|MessageToJsonString)\b",
        lambda path: not is_test(path),
        "a message may have a secret, as JoinResponse has: name the fields",
    ),
    Ban(
        "wait for a GPU",
        r"\b(cu(da)?(Device|Ctx|Stream|Event)Synchronize|"
        r"cuda(Memcpy|Memset)(2D|3D|ToSymbol|FromSymbol)?)\s*\(",
        lambda path: not path.startswith("tests/gpu/"),
        "poll an event of client/device/runtime.h",
    ),
    Ban(
        "launch",
        r"<<<",
        lambda path: not path.startswith(
            ("client/device/launch", "tests/gpu/")
        ),
        "the stream may be forgotten: use Launch of client/device/launch.h",
    ),
]


def check_form(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        where = "%s:%d: " % (path, number)
        if "\t" in line:
            yield where + "tab"
        if len(line) > MAX_COLUMNS and not INCLUDE.match(line):
            yield where + "%d columns, %d at most" % (len(line), MAX_COLUMNS)
        if re.search(r"\bTODO\b", line):
            yield where + "TODO: do it, or write an issue"


# Words of headers, messages and pages that docs/glossary.md has others for.
WORDS = [
    (
        r"\brooms\b|\b(Plan|Schedule|Parameter|Store|Group)Room\b|"
        r"\b([Tt]he|[Aa]|[Tt]his|[Ee]ach|plan|schedule) room\b(?! for)",
        "component, or folder",
    ),
    (r"\b[Ss]tand-ins?\b|\bStandIns?\b", "fallback coordinator"),
    (r"\b[Ss]pells?\b", "fallback epoch"),
    (r"\b[Ss]eats?\b", "attachment, or participant"),
    (r"\b[Dd]esks?\b", "service"),
    (r"\b(Fence|Caller|Answer)Gates?\b", "validator, or interceptor"),
    (r"\b[Pp]atien(t|ce)\b", "timeout"),
    (r"\b([Ff]arewell|[Gg]oodbye|[Ll]ast words)\b", "final state, or Leave"),
    (r"\b(make|makes|made|making) way\b", "regroup, end, or leave"),
    (r"\b[Cc]rews?\b|\b\w+House\b", "cluster, or server"),
    (r"\b[Ii]n good order\b", "cleanly"),
    (r"\bfor people\b", "for display"),
    (r"\bby and by\b", "eventually"),
    (r"\b([Nn]obody|[Ss]omebody|[Aa]nybody|[Ww]hoever)\b", "who it is"),
    (r"\b(is|are|was|were|be|been) (told|heard)\b", "sent, or notified"),
]


def check_words(path, text):
    if not path.endswith((".h", ".cuh", ".proto", ".md")):
        return
    if path.startswith(("docs/adr/", "CHANGELOG")):
        return  # History keeps its words.
    for number, line in enumerate(text.split("\n"), 1):
        for word, instead in WORDS:
            found = re.search(word, line)
            if found:
                yield '%s:%d: "%s": say %s' % (
                    path, number, found[0], instead,
                )


def check_guard(path, text):
    if not path.endswith((".h", ".cuh")):
        return
    guard = "COXSWAIN_%s_" % re.sub(r"[^A-Z0-9]", "_", path.upper())
    match = re.search(r"^#ifndef (\S+)\n#define (\S+)$", text, re.MULTILINE)
    if not match or set(match.groups()) != {guard}:
        yield "%s: the include guard must be %s" % (path, guard)


def check_bans(path, text):
    lines = without_comments(text).split("\n")
    for ban in BANS:
        if not ban.applies(path):
            continue
        for number, line in enumerate(lines, 1):
            if ban.pattern.search(line):
                yield "%s:%d: %s: %s" % (path, number, ban.name, ban.instead)


def check_layer(path, target_layer, where, what):
    layer = path.split("/")[0]
    if layer not in LAYERS or target_layer not in LAYERS or layer == target_layer:
        return
    if layer != "tests" and is_test(path) and target_layer == "tests":
        return  # A test beside the code may use what tests/ offers.
    if target_layer not in LAYERS[layer]:
        yield "%s: %s may not use %s (%s)" % (where, layer, target_layer, what)


def check_includes(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(1)
        where = "%s:%d" % (path, number)
        yield from check_layer(path, header.split("/")[0], where, header)
        for prefix, allowed in RESERVED.items():
            if header.startswith(prefix) and not (
                is_test(path) or path.startswith(allowed)
            ):
                yield "%s: %s is only for %s" % (
                    where,
                    header,
                    ", ".join(allowed),
                )


def targets(text):
    """Splits a BUILD file into the texts of its rule calls."""
    return re.split(r"^[ \[]*(?=(?:cc|sh)_[a-z]+\()", text, flags=re.MULTILINE)


def check_build_deps(path, text):
    folder = path[: -len("BUILD")]
    for target in targets(text):
        if not target.startswith(("cc_", "sh_")):
            continue
        rule = target.split("(")[0]
        name = re.search(r'\bname = "([^"]*)"', target)
        where = "%s (%s)" % (path, name.group(1) if name else rule)
        free = rule.endswith("_test") or "testonly" in target
        uses = re.sub(r"visibility = \[[^\]]*\]", "", target)
        for label in LABEL.findall(uses):
            layer = re.split("[/:]", label[2:])[0]
            if not (free and layer == "tests"):
                yield from check_layer(folder, layer, where, label)
            allowed = RESERVED_DEPS.get(label)
            if allowed and not free and not folder.startswith(
                allowed + ("tests/",)
            ):
                yield "%s: %s is only for %s" % (
                    where,
                    label,
                    ", ".join(allowed),
                )


def check_sizes(path, text):
    for target in targets(text):
        name = re.search(r'\bname = "([^"]*)"', target)
        if re.search(r'size = "(large|enormous)"', target) and not re.search(
            r'"(long|bench|gpu)"', target
        ):
            yield (
                "%s (%s): Bazel's filter -long leaves it out, because of its "
                "size: make it smaller, or tag it" % (path, name and name[1])
            )


def in_glob(name, text):
    """Returns whether a call of Bazel's glob() returns a file of this name."""
    wanted, _, left_out = text.partition("exclude")

    def any_matches(patterns):
        return any(
            fnmatch.fnmatchcase(name, pattern)
            for pattern in re.findall('"([^"]*)"', patterns)
        )

    return any_matches(wanted) and not any_matches(left_out)


def check_named_in_build(path, files):
    if not path.endswith((".c", ".cc", ".cu")):
        return
    folder, name = os.path.split(path)
    while folder and folder + "/BUILD" not in files:
        folder, parent = os.path.split(folder)
        name = parent + "/" + name
    build = files.get(folder + "/BUILD", "")
    if '"%s"' % name not in GLOB.sub("", build) and not any(
        in_glob(name, found) for found in GLOB.findall(build)
    ):
        yield "%s: no target in a BUILD file names it" % path


def folder_includes(files):
    """Returns {folder: {folder that it includes: ["file includes header"]}}.

    Without tests, on which nothing depends.
    """
    graph = {}
    for path, text in sorted(files.items()):
        if not is_source(path) or is_test(path):
            continue
        folder = os.path.dirname(path)
        for line in text.split("\n"):
            match = INCLUDE.match(line)
            header = match.group(1) if match else ""
            other = os.path.dirname(header)
            if header.split("/")[0] in LAYERS and other != folder:
                graph.setdefault(folder, {}).setdefault(other, []).append(
                    "%s includes %s" % (path, header)
                )
    return graph


def shortest_way(graph, start, end):
    """Returns the folders from start to end, or None."""
    ways = [[start]]
    seen = set()
    for way in ways:
        for folder in sorted(graph.get(way[-1], ())):
            if folder == end:
                return way + [end]
            if folder not in seen:
                seen.add(folder)
                ways.append(way + [folder])
    return None


def circles(graph):
    """Returns a shortest circle through each folder that is in one, each once.

    A circle is the list of its folders, the first of them again at its end.
    """
    found = {}
    for folder in sorted(graph):
        way = shortest_way(graph, folder, folder)
        if way:
            found.setdefault(frozenset(way), way)
    return list(found.values())


def check_folders(files):
    graph = folder_includes(files)
    for circle in circles(graph):
        steps = [
            "\n    " + include
            for here, there in zip(circle, circle[1:])
            for include in graph[here][there]
        ]
        yield "%s: folders in a circle:%s" % (
            " -> ".join(circle),
            "".join(steps),
        )


def classes_in(text):
    """Yields the classes whose names other files can see."""
    scopes = []
    for line in text.split("\n"):
        opened = NAMESPACE.match(line)
        found = CLASS.match(line)
        if opened:
            scopes.append(opened.group(1) or "")
        elif line.startswith("}  // namespace") and scopes:
            scopes.pop()
        elif found and "" not in scopes:
            yield "::".join(scopes + [found.group(1)])


def check_one_definition(files):
    """Two classes of one name are one to the linker: with the functions of
    whichever it finds first."""
    where = {}
    for path, text in sorted(files.items()):
        if is_source(path):
            for name in classes_in(text):
                where.setdefault(name, set()).add(path)
    for name, paths in sorted(where.items()):
        if len(paths) > 1:
            yield "%s is defined in %s" % (name, " and ".join(sorted(paths)))


def check_mains(path, text, files):
    """A program among the tests of a folder takes the place of GoogleTest's
    main(): none of them is run."""
    folder = os.path.dirname(path)
    for target in targets(text):
        if not target.startswith("cc_test("):
            continue
        for found in GLOB.findall(target):
            if "_test.cc" not in found.partition("exclude")[0]:
                continue
            for name in sorted(files):
                if (
                    os.path.dirname(name) == folder
                    and in_glob(os.path.basename(name), found)
                    and re.search(r"^int main\(", files[name], re.MULTILINE)
                ):
                    yield "%s: a test's glob takes %s, which has a main()" % (
                        path,
                        name,
                    )


# Of a decision in docs/adr/, in this order.
SECTIONS = (
    "Status: ", "## Context", "## Decision", "## Alternatives considered",
    "## Consequences",
)


def check_decisions(files):
    """Each page of docs/adr/ has its sections, and a row in the index."""
    index = files.get("docs/adr/README.md", "")
    for path, text in sorted(files.items()):
        name = os.path.basename(path)
        if not re.match(r"docs/adr/\d{4}-", path) or name.startswith("0000"):
            continue
        at = 0
        for section in SECTIONS:
            at = text.find("\n" + section, at)
            if at < 0:
                yield '%s: no "%s" in its place: see 0000-template.md' % (
                    path, section.strip(),
                )
                break
        title = re.match(r"# \d{4}\. (.*)", text)
        row = "| [%s](%s) | %s | " % (name[:4], name, title and title[1])
        if row not in index:
            yield "%s: docs/adr/README.md has no row that begins %s" % (
                path, row,
            )


def check(files):
    """Returns the findings in a tree, given as {path: text}."""
    findings = list(check_folders(files))
    findings += check_one_definition(files)
    findings += check_decisions(files)
    for path, text in sorted(files.items()):
        findings += check_words(path, text)
        if path.split("/")[0] not in LAYERS:
            continue
        if is_source(path):
            findings += check_form(path, text)
            findings += check_guard(path, text)
            findings += check_bans(path, text)
            findings += check_includes(path, text)
            findings += check_named_in_build(path, files)
        elif os.path.basename(path) == "BUILD":
            findings += check_build_deps(path, text)
            findings += check_sizes(path, text)
            findings += check_mains(path, text, files)
    return findings


def read_tree(root):
    files = {}
    for layer in LAYERS:
        for folder, _, names in os.walk(os.path.join(root, layer)):
            for name in names:
                if name == "BUILD" or is_source(name) or name.endswith(
                    (".proto", ".md")
                ):
                    full = os.path.join(folder, name)
                    with open(full, encoding="utf-8") as file:
                        files[os.path.relpath(full, root)] = file.read()
    for folder in ("", "docs", "docs/adr"):
        for name in os.listdir(os.path.join(root, folder)):
            if name.endswith(".md"):
                path = os.path.join(folder, name)
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    files[path] = file.read()
    return files


class RulesTest(unittest.TestCase):
    """Each rule finds what breaks it and leaves alone what does not."""

    def assert_finds(self, files, words):
        findings = check(files)
        self.assertTrue(
            any(words in finding for finding in findings),
            "%r was not among %r" % (words, findings),
        )

    def assert_clean(self, files):
        self.assertEqual(check(files), [])

    def source(self, path, text):
        """A tree of one .cc file that its BUILD file names."""
        folder, name = path.rsplit("/", 1)
        build = 'cc_library(\n    name = "x",\n    srcs = ["%s"],\n)\n' % name
        return {path: text, folder + "/BUILD": build}

    def include(self, path, header):
        return self.source(path, '#include "%s"\n' % header)

    def deps(self, path, rule, label):
        text = '%s(\n    name = "x",\n    deps = ["%s"],\n)\n' % (rule, label)
        return {path: text}

    def test_rooms_depend_one_way(self):
        for path, header in [
            ("base/x.cc", "proto/types.pb.h"),
            ("proto/x.cc", "server/core/y.h"),
            ("schedule/x.cc", "server/core/y.h"),
            ("schedule/x.cc", "client/y.h"),
            ("base/x.cc", "schedule/y.h"),
            ("server/rpc/x.cc", "client/session.h"),
            ("client/x.cc", "server/core/y.h"),
            ("client/x.cc", "hooks/y.h"),
            ("server/x.cc", "hooks/y.h"),
            ("hooks/x.cc", "server/y.h"),
            ("hooks/x.cc", "cli/y.h"),
            ("capi/x.cc", "server/y.h"),
            ("client/x.cc", "capi/y.h"),
            ("examples/x.cc", "cli/y.h"),
            ("client/x.cc", "examples/y.h"),
            ("client/x.cc", "tests/y.h"),
            ("client/x_test.cc", "server/y.h"),
        ]:
            self.assert_finds(self.include(path, header), "may not use")

    def test_rooms_may_use_what_is_below(self):
        for path, header in [
            ("proto/x.cc", "base/y.h"),
            ("server/x.cc", "proto/types.pb.h"),
            ("server/x.cc", "schedule/y.h"),
            ("client/x.cc", "schedule/y.h"),
            ("hooks/x.cc", "schedule/y.h"),
            ("client/x.cc", "client/comm/y.h"),
            ("hooks/x.cc", "client/reduce/hook.h"),
            ("capi/x.cc", "hooks/y.h"),
            ("cli/x.cc", "server/y.h"),
            ("examples/x.cc", "hooks/y.h"),
            ("examples/x.c", "capi/y.h"),
            ("tests/x.cc", "cli/y.h"),
            ("client/x_test.cc", "tests/conformance/y.h"),
        ]:
            self.assert_clean(self.include(path, header))

    def test_build_files_depend_one_way(self):
        for path, rule, label in [
            ("base/BUILD", "cc_library", "//client:x"),
            ("server/rpc/BUILD", "cc_library", "//client/rpc"),
            ("client/BUILD", "cc_test", "//server/core:x"),
            ("hooks/BUILD", "cc_library", "//tests/conformance:x"),
            ("examples/BUILD", "cc_binary", "//cli:coxswain"),
        ]:
            self.assert_finds(self.deps(path, rule, label), "may not use")
        self.assert_clean(
            self.deps("hooks/BUILD", "cc_test", "//tests/conformance:x")
        )
        self.assert_clean(self.deps("cli/BUILD", "cc_binary", "//server:x"))
        listed = "[\n    cc_library(\n        deps = [\"//cli:x\"],\n    )\n]"
        self.assert_finds({"base/BUILD": listed}, "may not use")

    def test_visibility_is_no_dependency(self):
        self.assert_clean(
            {
                "base/BUILD": 'cc_library(\n    name = "x",\n'
                '    visibility = ["//server:__subpackages__"],\n)\n'
            }
        )

    def test_vendors_have_their_doors(self):
        for path, header in [
            ("server/membership/x.cc", "grpcpp/grpcpp.h"),
            ("client/session.cc", "grpcpp/channel.h"),
            ("server/state/x.cc", "grpcpp/grpcpp.h"),
            ("base/status.cc", "grpcpp/support/status.h"),
            ("hooks/x.cc", "torch/torch.h"),
            ("client/reduce/x.cc", "ATen/ATen.h"),
            ("hooks/kernels/x.cu", "cuda_fp16.h"),
            ("client/comm/x.cc", "nccl.h"),
        ]:
            self.assert_finds(self.include(path, header), "is only for")
        for path, header in [
            ("server/rpc/x.cc", "grpcpp/grpcpp.h"),
            ("server/state/etcd/x.cc", "grpcpp/grpcpp.h"),
            ("base/grpc_status.cc", "grpcpp/support/status.h"),
            ("client/session_test.cc", "grpcpp/grpcpp.h"),
            ("client/torch/x.cc", "torch/torch.h"),
            ("client/device/cuda/x.cc", "cuda_runtime.h"),
            ("client/comm/nccl/x.cc", "nccl.h"),
        ]:
            self.assert_clean(self.include(path, header))
        self.assert_finds(
            self.deps("hooks/BUILD", "cc_library", "//third_party:torch"),
            "is only for",
        )

    def test_banned_words(self):
        for path, text, words in [
            ("base/x_test.cc", "std::this_thread::sleep_for(d);", "sleep"),
            ("tests/x.cc", "absl::SleepFor(d);", "sleep"),
            ("server/x.cc", "throw 1;", "throw"),
            ("server/x.cc", "auto now = absl::Now();", "wall clock"),
            ("client/x.cc", "std::random_device device;", "randomness"),
            ("server/x.cc", 'LogWarningOnce(peer, "refused");', "log once"),
            ("server/x.cc", "Log(joined.ShortDebugString());", "dump"),
            ("hooks/x.cu", "cudaDeviceSynchronize();", "wait for a GPU"),
            ("client/x.cc", "cudaStreamSynchronize(s);", "wait for a GPU"),
            ("client/device/x.cc", "cudaMemcpy(a, b, n, k);", "wait for"),
            ("tests/x.cc", "cudaEventSynchronize(e);", "wait for a GPU"),
            ("hooks/x.cu", "Halve<<<blocks, 256>>>(values);", "launch"),
        ]:
            self.assert_finds(self.source(path, text), words)
        for path, text in [
            ("server/x.cc", "// Never throw here, and no absl::Now()."),
            ("server/x.cc", 'Log("throw", \'"\', "throw", R"(throw)");'),
            ("server/x_test.cc", "throw 1;"),
            ("base/x.cc", "return absl::Now();"),
            ("client/device/x.cc", 'LogWarningOnce("gpu", "not_released");'),
            ("cli/main.cc", "std::random_device device;"),
            ("client/x.cc", "cudaMemcpyAsync(a, b, n, k, s); x << y;"),
            ("tests/gpu/x.cu", "cudaDeviceSynchronize();"),
        ]:
            self.assert_clean(self.source(path, text))

    def test_words_that_went_do_not_come_back(self):
        guard = "#ifndef COXSWAIN_BASE_X_H_\n#define COXSWAIN_BASE_X_H_\n"
        for text, words in [
            ("// The rooms of the server.", '"rooms": say component'),
            ("// Asks the room.", '"the room": say component'),
            ("class PlanRoom;", "say component"),
            ("// A stand-in decides.", "say fallback coordinator"),
            ("// In this spell.", "say fallback epoch"),
            ("// It takes a seat.", "say attachment"),
            ("// At the desk.", "say service"),
            ("class FenceGate;", "say validator"),
            ("// Its patience is over.", "say timeout"),
            ("// It says goodbye.", "say final state"),
            ("// They make way.", "say regroup"),
            ("class WireHouse;", "say cluster"),
            ("// It left in good order.", "say cleanly"),
            ("std::string text;  // for people", "say for display"),
            ("// Dropped by and by.", "say eventually"),
            ("// Nobody waits.", "say who it is"),
            ("// The caller is told.", "say sent"),
        ]:
            for path in ["base/x.h", "proto/x.proto", "docs/x.md", "README.md"]:
                self.assert_finds({path: guard + text}, words)
            for path in ["base/x.py", "docs/adr/0000-x.md", "CHANGELOG.md"]:
                self.assert_clean({path: text})
        for text in [
            "// There is room for it; an ended one makes room for a new one.",
            "void MakeRoom();",
            "// A standby spelled out.",
            "class StepGate;",
        ]:
            self.assert_clean({"base/x.h": guard + text})

    def test_decisions_have_their_sections_and_a_row(self):
        page = "# 0001. One\n\n" + "\n\n".join(
            section + "x" for section in SECTIONS
        )
        tree = {
            "docs/adr/0000-template.md": "# NNNN. Title",
            "docs/adr/0001-one.md": page,
            "docs/adr/README.md": "| [0001](0001-one.md) | One | accepted |",
        }
        self.assert_clean(tree)
        for section in SECTIONS:
            self.assert_finds(
                dict(tree, **{"docs/adr/0001-one.md": page.replace(
                    section, "Other")}),
                'no "%s" in its place' % section.strip(),
            )
        for index in ["", "| [0001](0001-one.md) | Another | accepted |"]:
            self.assert_finds(
                dict(tree, **{"docs/adr/README.md": index}), "has no row"
            )

    def test_form(self):
        for text, words in [
            ("\tint x;", "tab"),
            ("//" + "x" * MAX_COLUMNS, "columns"),
            ("// TODO: later", "TODO"),
        ]:
            self.assert_finds(self.source("base/x.cc", text), words)
        self.assert_clean(self.source("base/x.cc", "/" * MAX_COLUMNS))

    def test_each_source_is_in_a_target(self):
        build = 'cc_library(\n    srcs = glob(["*.cc"]%s),\n)\n'
        but_tests = build % ', exclude = ["*_test.cc", "y.cc"]'
        for text, name, found in [
            ("", "x.cc", True),
            (build % "", "x.cc", False),
            (but_tests, "x.cc", False),
            (but_tests, "x_test.cc", True),
            (but_tests, "y.cc", True),
            (but_tests + 'cc_test(srcs = ["x_test.cc"])', "x_test.cc", False),
        ]:
            tree = {"base/BUILD": text, "base/" + name: ""}
            if found:
                self.assert_finds(tree, "no target in a BUILD file names it")
            else:
                self.assert_clean(tree)

    def test_a_test_has_no_main_of_its_own(self):
        build = 'cc_test(\n    srcs = glob(["*_test.cc"]%s),\n)\n'
        tree = {
            "base/x_test.cc": "",
            "base/for_test.cc": "int main() {}\n",
            "base/BUILD": build % "",
        }
        self.assert_finds(tree, "takes base/for_test.cc, which has a main()")
        tree["base/BUILD"] = (
            build % ', exclude = ["for_test.cc"]'
            + 'cc_binary(srcs = ["for_test.cc"])'
        )
        self.assert_clean(tree)

    def test_guard_matches_the_path(self):
        wrong = "#ifndef COXSWAIN_Y_H_\n#define COXSWAIN_Y_H_\n#endif\n"
        self.assert_finds({"base/x.h": wrong}, "COXSWAIN_BASE_X_H_")
        self.assert_finds({"base/x.h": "#pragma once\n"}, "include guard")
        self.assert_clean({"base/x.h": wrong.replace("_Y_H_", "_BASE_X_H_")})

    def test_no_test_is_left_out_by_its_size(self):
        wrong = 'cc_test(\n    name = "x",\n    size = "large",\n)\n'
        self.assert_finds({"base/BUILD": wrong}, "(x): Bazel's filter")
        tagged = wrong.replace("\n)", '\n    tags = ["long"],\n)')
        self.assert_clean({"base/BUILD": tagged})
        self.assert_clean({"base/BUILD": wrong.replace("large", "medium")})

    def test_folders_make_no_circle(self):
        tree = self.include("server/a/x.cc", "server/b/y.h")
        tree.update(self.include("server/b/y.cc", "server/c/z.h"))
        self.assert_clean(tree)
        tree.update(self.include("server/c/z.cc", "server/a/x.h"))
        self.assert_finds(tree, "server/a -> server/b -> server/c -> server/a")
        for include in [
            "server/a/x.cc includes server/b/y.h",
            "server/b/y.cc includes server/c/z.h",
            "server/c/z.cc includes server/a/x.h",
        ]:
            self.assert_finds(tree, include)
        self.assertEqual(len(check(tree)), 1)

    def test_a_folder_and_its_parent_make_no_circle(self):
        tree = self.include("server/x.cc", "server/b/y.h")
        tree.update(self.include("server/b/y.cc", "server/x.h"))
        self.assert_finds(tree, "server -> server/b -> server")

    def test_a_test_may_include_what_is_above_its_folder(self):
        tree = self.include("server/a/x.cc", "server/b/y.h")
        tree.update(self.include("server/b/y_test.cc", "server/a/x.h"))
        self.assert_clean(tree)

    def test_a_class_has_a_name_of_its_own(self):
        def both(first, second):
            tree = self.source("base/x.cc", first)
            tree.update(self.source("client/y.cc", second))
            return tree

        one = "namespace coxswain {\nclass One {\n"
        self.assert_finds(both(one, one), "coxswain::One is defined in base")
        self.assert_clean(both(one, one.replace("coxswain", "other")))
        hidden = "namespace coxswain {\nnamespace {\nclass One {\n"
        self.assert_clean(both(hidden, one))
        after = hidden.replace(
            "class", "}  // namespace\nclass"
        )
        self.assert_finds(both(after, one), "coxswain::One is defined in base")
        self.assert_clean(both("class One;\n", "class One;\n"))

    def test_every_source_is_built(self):
        tree = self.source("base/x.cc", "")
        tree["base/forgotten.cc"] = ""
        self.assert_finds(tree, "base/forgotten.cc: no target")
        self.assert_finds({"base/z/x.cc": ""}, "base/z/x.cc: no target")


class TreeTest(unittest.TestCase):
    root = os.path.dirname(os.path.realpath("WORKSPACE"))

    def test_the_project_keeps_its_rules(self):
        files = read_tree(self.root)
        self.assertGreater(len(files), 1, "no sources under " + self.root)
        findings = check(files)
        if findings:
            self.fail("\n" + "\n".join(findings))

    def test_the_readme_shows_the_example_as_it_is(self):
        def read(path):
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                return file.read()

        shown = "```cpp\n" + read("examples/minimal/main.cc") + "```\n"
        self.assertIn(shown, read("README.md"))

    def test_a_program_that_trains_by_one_call_is_short(self):
        for path, limit in (("examples/minimal/main.cc", 25),
                            ("examples/custom_framework/main.cc", 59)):
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                self.assertLessEqual(len(file.readlines()), limit, path)

    def test_the_page_of_the_c_interface_shows_the_example_as_it_is(self):
        def read(path):
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                return file.read()

        shown = re.search(
            r"^## A step$.*?^```c\n(.*?)^```$",
            read("docs/c-api.md"),
            re.DOTALL | re.MULTILINE,
        )
        self.assertIn(shown[1], read("examples/c/linear_regression.c"))

    def test_a_hook_of_ones_own_is_short_and_shown_as_it_is(self):
        path = os.path.join(self.root, "examples/custom_hook/predivide.cc")
        with open(path, encoding="utf-8") as file:
            hook = file.read()
        self.assertLess(len(hook.splitlines()), 60)
        page = os.path.join(self.root, "docs/hooks.md")
        with open(page, encoding="utf-8") as file:
            self.assertIn("```cpp\n" + hook + "```\n", file.read())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        TreeTest.root = sys.argv.pop(1)
    unittest.main()
