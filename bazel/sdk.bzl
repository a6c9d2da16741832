"""sdk: what programs outside this workspace compile and link against.

One folder: include/coxswain with the public headers under their own paths and
what they include, lib/libcoxswain.a merged from all libraries below `deps`, and
files with which pkg-config and CMake find what else to link: the very options
that the programs in here are linked with. Beside them are the header and the
library of the C interface, which is whole. Public headers reach neither
generated headers nor those of protobuf and gRPC: deploy/sdk/assemble.py fails
otherwise.
"""

def _is_ours(file):
    return not file.short_path.startswith("../")

def _sdk_impl(ctx):
    info = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    )
    archives = []
    options = []
    for linked in info.linking_context.linker_inputs.to_list():
        options += linked.user_link_flags
        for library in linked.libraries:
            archive = library.static_library or library.pic_static_library
            if archive:
                archives.append(archive)
    headers = [
        header
        for header in info.compilation_context.headers.to_list()
        if _is_ours(header)
    ]
    folder = ctx.actions.declare_directory(ctx.label.name)
    order = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(order, json.encode(struct(
        archives = [archive.path for archive in archives],
        c_header = ctx.file.c_header.path,
        c_library = ctx.file.c_library.path,
        # What headers ask about.
        defines = [
            define
            for define in info.compilation_context.defines.to_list()
            if define.startswith(("COXSWAIN_CUDA=", "COXSWAIN_NCCL="))
        ],
        headers = [[header.short_path, header.path] for header in headers],
        link_options = options,
        public = ctx.attr.public,
        version = ctx.file.version.path,
    )))
    ctx.actions.run(
        executable = ctx.file._assemble,
        arguments = [order.path, folder.path],
        inputs = archives + headers + [
            order,
            ctx.file.c_header,
            ctx.file.c_library,
            ctx.file.version,
        ],
        outputs = [folder],
        mnemonic = "CoxswainSdk",
    )
    return [DefaultInfo(
        files = depset([folder]),
        runfiles = ctx.runfiles(files = [folder]),
    )]

sdk = rule(
    implementation = _sdk_impl,
    attrs = {
        "c_header": attr.label(allow_single_file = True),
        "c_library": attr.label(allow_single_file = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "public": attr.string_list(doc = "headers that programs include"),
        "version": attr.label(allow_single_file = True),
        "_assemble": attr.label(
            allow_single_file = True,
            default = "//deploy/sdk:assemble.py",
        ),
    },
)
