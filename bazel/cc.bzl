"""The C++ rules of this project: the native ones with its warnings.

Headers under /usr/include are system headers and raise no warnings.
"""

_COPTS = ["-Wall", "-Wextra", "-Werror"]

def _under_tsan(labels):
    return select({
        "//bazel:tsan": labels,
        "//conditions:default": [],
    })

# What a program needs for ThreadSanitizer to understand gRPC.
_TSAN_DEPS = ["//tests/support:tsan_grpc"]

# Named by --config=tsan in .bazelrc.
_TSAN_DATA = ["//tests/support:tsan.supp"]

def cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = _COPTS + copts, **kwargs)

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

def _test(name, copts, data, deps, **kwargs):
    native.cc_test(
        name = name,
        copts = _COPTS + copts,
        data = data + _under_tsan(_TSAN_DATA),
        deps = deps + _TEST_DEPS + _under_tsan(_TSAN_DEPS),
        **kwargs
    )

def cc_test(
        name,
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
    _test(name, copts, data, deps, size = size, env = env, tags = tags, **kwargs)
    if long_env:
        more = dict(env)
        more.update(long_env)
        _test(
            name[:-len("_test")] + "_long_test",
            copts,
            data,
            deps,
            size = "enormous",
            env = more,
            tags = tags + ["long"],
            **kwargs
        )
