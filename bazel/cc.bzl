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

def cc_test(name, size = "small", copts = [], data = [], deps = [], **kwargs):
    native.cc_test(
        name = name,
        size = size,
        copts = _COPTS + copts,
        data = data + _under_tsan(_TSAN_DATA),
        deps = deps + _TEST_DEPS + _under_tsan(_TSAN_DEPS),
        **kwargs
    )
