"""The C++ rules of this project: the native ones with its warnings.

Headers under /usr/include are system headers and raise no warnings.
"""

_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    # Takes sources that are compiled together for headers.
    "-Wno-subobject-linkage",
]

def _under_tsan(labels):
    return select({
        "//bazel:tsan": labels,
        "//conditions:default": [],
    })

# What a program needs for ThreadSanitizer to understand gRPC.
_TSAN_DEPS = ["//tests/support:tsan_grpc"]

# Named by --config=tsan in .bazelrc.
_TSAN_DATA = ["//tests/support:tsan.supp"]

# At most so many sources go through the compiler together: more would save
# little, and each change of one compiles all of them.
_TOGETHER = 8

def _together(name, srcs, testonly):
    """Returns sources to compile in place of srcs, of which each holds several.

    Most of a compilation goes into headers, which sources of one target share.
    Names of anonymous namespaces are therefore names of the whole target. The
    define "sources=apart" compiles each source on its own.

    Args:
      name: of the target; of a test it ends in _test.
      srcs: of the target. Sources of other folders and headers stay apart.
      testonly: of the target.
    """
    if type(srcs) != type([]):
        return srcs
    merged = [src for src in srcs if src.endswith(".cc") and ":" not in src]
    if len(merged) < 2:
        return srcs
    parts = (len(merged) + _TOGETHER - 1) // _TOGETHER
    result = [src for src in srcs if src not in merged]
    for part in range(parts):
        # Its end is what .bazelrc knows tests by.
        out = "%s.part%d%s.cc" % (
            name,
            part,
            "_test" if name.endswith("_test") else "",
        )
        native.genrule(
            name = out + ".genrule",
            testonly = testonly,
            srcs = merged[
                len(merged) * part // parts:len(merged) * (part + 1) // parts
            ],
            outs = [out],
            cmd = "for source in $(SRCS); do " +
                  "echo \"#line 1 \\\"$$source\\\"\"; cat $$source; done > $@",
            visibility = ["//visibility:private"],
        )
        result.append(out)
    return select({
        "//bazel:apart": srcs,
        "//conditions:default": result,
    })

def cc_library(
        name,
        srcs = [],
        copts = [],
        together = True,
        testonly = None,
        **kwargs):
    """A library.

    Args:
      name: of the library.
      srcs: its sources and own headers.
      copts: added to the project's warnings.
      together: whether sources are compiled several at a time.
      testonly: as everywhere; None: the default of its package.
      **kwargs: of native.cc_library.
    """
    native.cc_library(
        name = name,
        srcs = _together(name, srcs, testonly) if together else srcs,
        copts = _COPTS + copts,
        testonly = testonly,
        **kwargs
    )

def cc_binary(name, copts = [], deps = [], **kwargs):
    native.cc_binary(
        name = name,
        copts = _COPTS + copts,
        deps = deps + _under_tsan(_TSAN_DEPS),
        **kwargs
    )

# What each test has; a program of its own brings its main().
_TEST_DEPS = ["//third_party:absl", "//third_party:gtest"]

# Tags of a target that the sanitizers leave out: it has libtorch, which is not
# instrumented, or measures memory, or has no C++ of its own to look at.
NOT_INSTRUMENTED = ["noasan", "notsan"]

def _test(name, srcs, copts, data, deps, **kwargs):
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = _COPTS + copts,
        data = data + _under_tsan(_TSAN_DATA),
        deps = deps + _TEST_DEPS + _under_tsan(_TSAN_DEPS),
        **kwargs
    )

def cc_test(
        name,
        srcs,
        size = "small",
        copts = [],
        data = [],
        deps = [],
        env = {},
        tags = [],
        long_env = None,
        **kwargs):
    """A test, and where long_env is given the same test with more to do.

    Args:
      name: ends in _test.
      srcs: compiled several at a time.
      size: of the test; the long one is enormous.
      copts: added to the project's warnings.
      data: what the test opens or starts.
      deps: all but GoogleTest and Abseil.
      env: variables of both.
      tags: of both; the long one has the tag "long" as well.
      long_env: variables of NAME_long_test, which env does not have or which
        replace those of env.
      **kwargs: of native.cc_test.
    """
    srcs = _together(name, srcs, testonly = True)
    _test(
        name,
        srcs,
        copts,
        data,
        deps,
        size = size,
        env = env,
        tags = tags,
        **kwargs
    )
    if long_env:
        more = dict(env)
        more.update(long_env)
        _test(
            name[:-len("_test")] + "_long_test",
            srcs,
            copts,
            data,
            deps,
            size = "enormous",
            env = more,
            tags = tags + ["long"],
            **kwargs
        )
