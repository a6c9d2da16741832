"""cuda_toolkit: the CUDA Toolkit and NCCL's header, where they are installed.

@cuda//:defs.bzl says what was found, and the build does without the rest: a
machine without the toolkit builds and passes its tests too. What was found, or
not, is said in one line. --repo_env=COXSWAIN_CUDA=off leaves it out although
it is there.

Looked for below CUDA_HOME and /usr/local/cuda; NCCL's header there and in
/usr/include.
"""

_DEFS = """\
# nvcc is an absolute path, or empty.
NVCC = {nvcc}
HAS_CUDA = {cuda}
HAS_NCCL = {nccl}
ARCHITECTURES = {architectures}
"""

_CUDA = """
cc_library(
    name = "cudart",
    hdrs = glob(["cuda_include/**"]),
    defines = ["COXSWAIN_CUDA={version}"],
    includes = ["cuda_include"],
    linkopts = ["-L{lib}", "-lcudart_static", "-ldl", "-lrt", "-lpthread"],
)
"""

_NCCL = """
cc_library(
    name = "nccl_header",
    hdrs = glob(["nccl_include/nccl.h"]),
    defines = ["COXSWAIN_NCCL={version}"],
    includes = ["nccl_include"],
    deps = [":cudart"],
)
"""

_EMPTY = """
cc_library(name = "{name}")
"""

def _first(rctx, paths):
    for path in paths:
        if rctx.path(path).exists:
            return path
    return None

def _number_after(text, words):
    """The number in the line "#define WORDS NUMBER"; 0 without one."""
    for line in text.split("\n"):
        parts = [part for part in line.split(" ") if part]
        if parts[:2] == ["#define", words] and len(parts) > 2:
            return int(parts[2])
    return 0

def _find_toolkit(rctx):
    homes = ["/usr/local/cuda"]
    if rctx.os.environ.get("CUDA_HOME"):
        homes = [rctx.os.environ["CUDA_HOME"]] + homes
    for home in homes:
        lib = _first(rctx, [
            home + folder + "/libcudart_static.a"
            for folder in ["/lib64", "/lib", "/lib/x86_64-linux-gnu"]
        ])
        header = home + "/include/cuda_runtime.h"
        nvcc = home + "/bin/nvcc"
        if lib and rctx.path(header).exists and rctx.path(nvcc).exists:
            return struct(
                home = home,
                nvcc = nvcc,
                lib = lib[:lib.rindex("/")],
                version = _number_after(
                    rctx.read(home + "/include/cuda_runtime_api.h"),
                    "CUDART_VERSION",
                ),
            )
    return None

def _cuda_toolkit_impl(rctx):
    wanted = rctx.os.environ.get("COXSWAIN_CUDA", "") != "off"
    toolkit = _find_toolkit(rctx) if wanted else None
    header = None
    if toolkit:
        header = _first(rctx, [
            toolkit.home + "/include/nccl.h",
            "/usr/include/nccl.h",
        ])
    said = "CUDA: none found, so back ends and kernels for GPUs are left out"
    if not wanted:
        said = "CUDA: left out, as COXSWAIN_CUDA=off asks for"
    build = ["package(default_visibility = [\"//visibility:public\"])"]
    if toolkit:
        rctx.symlink(toolkit.home + "/include", "cuda_include")
        build.append(_CUDA.format(version = toolkit.version, lib = toolkit.lib))
        said = "CUDA: %s, version %d" % (toolkit.home, toolkit.version)
    else:
        build.append(_EMPTY.format(name = "cudart"))
    if header:
        text = rctx.read(header)
        version = _number_after(text, "NCCL_VERSION_CODE")
        # The header alone: a folder such as /usr/include must not become one
        # of those that are searched before the system's.
        rctx.symlink(header, "nccl_include/nccl.h")
        build.append(_NCCL.format(version = version))
        said += "; NCCL's header, version %d" % version
    else:
        build.append(_EMPTY.format(name = "nccl_header"))
        if toolkit:
            said += "; NCCL's header was not found"
    rctx.file("BUILD", "\n".join(build))
    rctx.file("defs.bzl", _DEFS.format(
        nvcc = repr(toolkit.nvcc if toolkit else ""),
        cuda = toolkit != None,
        nccl = header != None,
        architectures = repr(rctx.os.environ.get(
            "COXSWAIN_CUDA_ARCHITECTURES",
            "80 90",
        ).split(" ")),
    ))

    # buildifier: disable=print
    print(said)

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    configure = True,
    environ = ["COXSWAIN_CUDA", "COXSWAIN_CUDA_ARCHITECTURES", "CUDA_HOME"],
    local = True,
)
