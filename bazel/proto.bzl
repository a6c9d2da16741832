"""cc_proto: C++ messages and gRPC services from .proto files.

Generated files lie beside their sources in the output tree, so they are
included from the root: #include "proto/types.pb.h". Imports in a .proto file
read the same way: import "proto/types.proto".
"""

_Protos = provider(
    doc = "The .proto files that a target and its dependencies hold.",
    fields = {"transitive": "depset of files"},
)

def _codegen_impl(ctx):
    protos = depset(
        ctx.files.srcs,
        transitive = [dep[_Protos].transitive for dep in ctx.attr.deps],
    )
    kinds = ["pb"] + (["grpc.pb"] if ctx.attr.services else [])
    headers = []
    sources = []
    for src in ctx.files.srcs:
        stem = src.basename[:-len(".proto")]
        for kind in kinds:
            base = "%s.%s" % (stem, kind)
            headers.append(ctx.actions.declare_file(base + ".h"))
            sources.append(ctx.actions.declare_file(base + ".cc"))

    args = ctx.actions.args()
    args.add("-I.")
    args.add("--cpp_out=" + ctx.bin_dir.path)
    tools = []
    if ctx.attr.services:
        tools.append(ctx.file._plugin)
        args.add(ctx.file._plugin, format = "--plugin=protoc-gen-grpc=%s")
        args.add("--grpc_out=" + ctx.bin_dir.path)
    args.add_all(ctx.files.srcs)
    ctx.actions.run(
        executable = ctx.file._protoc,
        arguments = [args],
        inputs = protos,
        outputs = headers + sources,
        tools = tools,
        mnemonic = "Protoc",
        progress_message = "Generating C++ for %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset(headers + sources)),
        OutputGroupInfo(headers = depset(headers), sources = depset(sources)),
        _Protos(transitive = protos),
    ]

def _tool(name):
    return attr.label(
        default = "@system//:" + name,
        allow_single_file = True,
        cfg = "exec",
    )

_codegen = rule(
    implementation = _codegen_impl,
    attrs = {
        "deps": attr.label_list(providers = [_Protos]),
        "services": attr.bool(),
        "srcs": attr.label_list(allow_files = [".proto"]),
        "_plugin": _tool("grpc_cpp_plugin"),
        "_protoc": _tool("protoc"),
    },
)

def _codegen_label(label):
    """//proto:x -> //proto:x_codegen."""
    if ":" not in label:
        label += ":" + label.split("/")[-1]
    return label + "_codegen"

def cc_proto(name, srcs, deps = [], services = False, visibility = None):
    """A C++ library generated from .proto files.

    Args:
      name: the library's name, for the deps of C++ targets.
      srcs: .proto files of this package.
      deps: the cc_proto targets whose files the srcs import. The well-known
        types (google/protobuf/...) need none.
      services: whether the srcs define gRPC services; each file then also
        gives a .grpc.pb.h.
      visibility: as usual.
    """
    codegen = name + "_codegen"
    _codegen(
        name = codegen,
        srcs = srcs,
        deps = [_codegen_label(dep) for dep in deps],
        services = services,
        visibility = visibility,
    )
    for group in ["headers", "sources"]:
        native.filegroup(
            name = "%s_%s" % (name, group),
            srcs = [codegen],
            output_group = group,
        )
    native.cc_library(
        name = name,
        srcs = [name + "_sources"],
        hdrs = [name + "_headers"],
        visibility = visibility,
        deps = deps + ["//third_party:grpc"],
    )
