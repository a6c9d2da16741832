"""cu_library: sources for GPUs, compiled by nvcc where the toolkit was found.

Elsewhere the library is empty but for its headers, and COXSWAIN_CUDA is not
defined. .cu files include neither Abseil nor gRPC.
"""

load("@cuda//:defs.bzl", "ARCHITECTURES", "HAS_CUDA", "NVCC")
load("//bazel:cc.bzl", "cc_library")

# The same bits as the CPU computes: no contraction to fused multiply-adds.
_FLAGS = [
    "-c",
    "-std=c++17",
    "-O3",
    "--fmad=false",
    "--threads=0",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-Wall,-Wextra,-O2,-ffp-contract=off",
]

# Runs "$2"... with a temporary folder of its own, "$1". nvcc names its temporary
# files by its process number, which is the same in all sandboxes, and these
# share /tmp. Bazel sets TMPDIR itself, whatever the `env` of the action is.
_IN_OWN_TMPDIR = """
export TMPDIR="${PWD}/$1"
shift
rm -rf "${TMPDIR}"
mkdir -p "${TMPDIR}" || exit
trap 'rm -rf "${TMPDIR}"' EXIT
"$@"
"""

def _architecture_flags():
    flags = [
        "-gencode=arch=compute_{0},code=sm_{0}".format(number)
        for number in ARCHITECTURES
    ]

    # Newer GPUs compile this at start.
    last = ARCHITECTURES[-1]
    return flags + ["-gencode=arch=compute_{0},code=compute_{0}".format(last)]

def _nvcc_objects_impl(ctx):
    compiler = ctx.file.compiler
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    headers = depset(transitive = [context.headers for context in contexts])
    objects = []
    for src in ctx.files.srcs:
        out = ctx.actions.declare_file(src.basename[:-len(".cu")] + ".pic.o")
        args = ctx.actions.args()
        args.add_all(_FLAGS + _architecture_flags())
        args.add("-I.")
        args.add("-I" + ctx.bin_dir.path)
        for context in contexts:
            args.add_all(context.defines, format_each = "-D%s")
            args.add_all(context.system_includes, before_each = "-isystem")
        args.add("-o", out)
        args.add(src)
        ctx.actions.run_shell(
            command = _IN_OWN_TMPDIR,
            arguments = [
                out.path + ".tmp",
                compiler.path if compiler else NVCC,
                args,
            ],
            inputs = depset(
                ctx.files.srcs + ctx.files.hdrs + ctx.files.compiler,
                transitive = [headers],
            ),
            outputs = [out],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s for GPUs" % src.short_path,
            use_default_shell_env = True,
        )
        objects.append(out)
    return [DefaultInfo(
        files = depset(objects),
        runfiles = ctx.runfiles(files = objects),
    )]

nvcc_objects = rule(
    doc = "The object files that nvcc makes of `srcs`.",
    implementation = _nvcc_objects_impl,
    attrs = {
        "compiler": attr.label(
            doc = "For tests: a program in the place of nvcc.",
            allow_single_file = True,
        ),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = True),
        "srcs": attr.label_list(allow_files = [".cu"]),
    },
)

def cu_library(name, srcs, hdrs = [], deps = [], tags = [], testonly = False, **kwargs):
    """A cc_library of objects that nvcc made of `srcs`."""
    objects = []
    if HAS_CUDA:
        nvcc_objects(
            name = name + "_objects",
            srcs = srcs,
            hdrs = hdrs,
            tags = tags,
            testonly = testonly,
            visibility = ["//visibility:private"],
            deps = deps,
        )
        objects = [name + "_objects"]
    cc_library(
        name = name,
        srcs = objects,
        hdrs = hdrs,
        tags = tags,
        testonly = testonly,
        deps = deps,
        **kwargs
    )
