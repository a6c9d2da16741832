"""What the build takes from outside: everything is a system library."""

load("//third_party:cuda.bzl", "cuda_toolkit")
load("//third_party:offline.bzl", "offline_bazel_repositories")
load("//third_party:pkg_config.bzl", "system_libraries")

def coxswain_repositories():
    """Called by WORKSPACE."""
    offline_bazel_repositories()
    cuda_toolkit(name = "cuda")
    system_libraries(
        name = "system",
        tools = {
            "grpc_cpp_plugin": "protobuf-compiler-grpc",
            "protoc": "protobuf-compiler",
        },
        pkg_config = {
            # Abseil has one module per library; these pull in the rest.
            "absl": [
                "absl_cord",
                "absl_optional",
                "absl_span",
                "absl_status",
                "absl_statusor",
                "absl_str_format",
                "absl_strings",
                "absl_time",
            ],
            "cli11": ["CLI11"],
            # protobuf is not among what grpc++ asks for.
            "grpc": ["grpc++", "protobuf"],
            "gtest": ["gmock_main"],
            "highway": ["libhwy"],
            "httplib": ["cpp-httplib"],
            "isal": ["libisal"],
            "json": ["nlohmann_json"],
            "openssl": ["libssl", "libcrypto"],
            "prometheus": ["prometheus-cpp-core"],
            "sqlite": ["sqlite3"],
            "yaml": ["yaml-cpp"],
            "zlib": ["zlib"],
        },
        linkopts = {
            "gloo": ["-lgloo"],
            "grpc": ["-lgrpc++_reflection"],
            "torch": ["-ltorch", "-ltorch_cpu", "-lc10"],
        },
        headers = {
            "gloo": "/usr/include/gloo/config.h",
            "torch": "/usr/include/torch/csrc/api/include/torch/version.h",
        },
        include_folders = {
            "torch": "/usr/include/torch/csrc/api/include",
        },
        debian = {
            "absl": "libabsl-dev",
            "cli11": "libcli11-dev",
            "gloo": "libgloo-dev",
            "grpc": "libgrpc++-dev libprotobuf-dev",
            "gtest": "libgtest-dev libgmock-dev",
            "highway": "libhwy-dev",
            "httplib": "libcpp-httplib-dev libssl-dev",
            "isal": "libisal-dev",
            "json": "nlohmann-json3-dev",
            "openssl": "libssl-dev",
            "prometheus": "prometheus-cpp-dev",
            "sqlite": "libsqlite3-dev",
            "torch": "libtorch-dev",
            "yaml": "libyaml-cpp-dev",
            "zlib": "zlib1g-dev",
        },
    )
