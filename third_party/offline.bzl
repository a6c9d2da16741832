"""Stand-ins for the repositories that an old Bazel would download.

Debian's bazel-bootstrap (4.2.3) asks the network for rules_cc, rules_java and
remote_coverage_tools, although native rules are all this project uses. The
stubs let it build without a network. A newer Bazel brings these repositories
itself and is left alone. The switch is a feature and not a version, because
Debian's Bazel reports an empty version.
"""

def _stub_impl(rctx):
    rctx.file("WORKSPACE", "")
    for path, text in rctx.attr.files.items():
        rctx.file(path, text)

_stub_repository = repository_rule(
    implementation = _stub_impl,
    attrs = {"files": attr.string_dict()},
)

_CC_RULES = [
    "cc_binary",
    "cc_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
]

_CC_DEFS = "".join(["{0} = native.{0}\n".format(rule) for rule in _CC_RULES])

_COVERAGE_BUILD = """filegroup(
    name = "coverage_report_generator",
    srcs = [],
    visibility = ["//visibility:public"],
)
"""

def offline_bazel_repositories():
    """Defines the stubs, on a Bazel that needs them."""
    if hasattr(native, "cc_shared_library"):
        return
    _stub_repository(
        name = "rules_cc",
        files = {"BUILD": "", "cc/BUILD": "", "cc/defs.bzl": _CC_DEFS},
    )
    _stub_repository(
        name = "remote_coverage_tools",
        files = {"BUILD": _COVERAGE_BUILD},
    )
    native.local_repository(
        name = "rules_java",
        path = "/usr/share/bazel/rules/java",
    )
