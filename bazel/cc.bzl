"""The C++ rules of this project: the native ones with its warnings.

Headers under /usr/include are system headers and raise no warnings.
"""

_COPTS = ["-Wall", "-Wextra", "-Werror"]

def cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = _COPTS + copts, **kwargs)

def cc_binary(name, copts = [], **kwargs):
    native.cc_binary(name = name, copts = _COPTS + copts, **kwargs)

def cc_test(name, size = "small", copts = [], data = [], deps = [], **kwargs):
    native.cc_test(
        name = name,
        size = size,
        copts = _COPTS + copts,
        data = data + select({
            "//bazel:tsan": ["//tests/sanitizers:tsan.supp"],
            "//conditions:default": [],
        }),
        deps = deps + select({
            "//bazel:tsan": ["//tests/sanitizers:tsan_grpc"],
            "//conditions:default": [],
        }),
        **kwargs
    )
