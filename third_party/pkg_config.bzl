"""system_libraries: one repository for all that comes from the system.

Headers in /usr/include need no declaration, so a library here is its link
options and defines, read from pkg-config. The version of each library is one
of its defines: after an upgrade and a restart of the Bazel server, everything
that uses the library is compiled again.

A missing library or tool fails with the Debian package that holds it.
"""

def _run(rctx, command, hint):
    result = rctx.execute(command)
    if result.return_code != 0:
        fail("\n%s\n%s failed: %s" % (
            hint,
            " ".join([str(word) for word in command]),
            result.stderr.strip(),
        ))
    return result.stdout.strip()

def _hint(what, package):
    return "%s was not found. Install it: apt-get install %s" % (what, package)

def _unique_words(text):
    return {word: None for word in text.split(" ") if word}.keys()

def _last_of_each(words):
    """Drops repeats and keeps the last: what link order asks for."""
    return reversed({word: None for word in reversed(words)}.keys())

def _library(name, defines, linkopts, extra = ""):
    return """cc_library(
    name = {name},
    defines = {defines},
    linkopts = {linkopts},{extra}
    visibility = ["//visibility:public"],
)
""".format(
        name = repr(name),
        defines = repr(defines),
        linkopts = repr(linkopts),
        extra = extra,
    )

def _version_define(name, version):
    return "COXSWAIN_WITH_%s=%s" % (name.upper(), version)

def _pkg_config_library(rctx, pkg_config, name, modules):
    hint = _hint(name, rctx.attr.debian[name])
    versions = _run(rctx, [pkg_config, "--modversion"] + modules, hint)
    cflags = _run(rctx, [pkg_config, "--cflags-only-other"] + modules, hint)
    libs = _run(rctx, [pkg_config, "--libs"] + modules, hint)
    defines = [word[2:] for word in _unique_words(cflags) if word[:2] == "-D"]
    versions = {v: None for v in versions.split("\n")}.keys()
    defines.append(_version_define(name, "_".join(versions)))

    # A group, as in -Wl,--push-state ... -Wl,--pop-state, loses its sense when
    # its words are sorted out one by one; plain libraries do not.
    words = [w for w in libs.split(" ") if w and w[:6] != "-Wl,--"]
    extra = rctx.attr.linkopts.get(name, [])
    return _library(name, defines, extra + _last_of_each(words))

def _header_library(rctx, name):
    """A library without pkg-config file, found by a header."""
    hint = _hint(name, rctx.attr.debian[name])
    header = rctx.path(rctx.attr.headers[name])
    if not header.exists:
        fail("\n" + hint + "\nmissing file: %s" % header)

    # hash() of the text stands for the version: the header names it.
    defines = [_version_define(name, str(hash(rctx.read(header))))]
    extra = ""
    if name in rctx.attr.include_folders:
        rctx.symlink(rctx.attr.include_folders[name], name + "_include")
        extra = """
    hdrs = glob(["{0}_include/**"]),
    includes = ["{0}_include"],""".format(name)
    return _library(name, defines, rctx.attr.linkopts.get(name, []), extra)

def _system_libraries_impl(rctx):
    for tool, package in rctx.attr.tools.items():
        path = rctx.which(tool)
        if not path:
            fail("\n" + _hint(tool, package))
        rctx.symlink(path, tool)
    pkg_config = rctx.which("pkg-config")
    if not pkg_config:
        fail("\n" + _hint("pkg-config", "pkg-config"))
    build = ["exports_files(%s)\n" % repr(rctx.attr.tools.keys())]
    for name, modules in rctx.attr.pkg_config.items():
        build.append(_pkg_config_library(rctx, pkg_config, name, modules))
    for name in rctx.attr.headers:
        build.append(_header_library(rctx, name))
    rctx.file("BUILD", "\n".join(build))

system_libraries = repository_rule(
    implementation = _system_libraries_impl,
    attrs = {
        "debian": attr.string_dict(
            doc = "library -> the Debian package to install",
        ),
        "headers": attr.string_dict(
            doc = "library without pkg-config file -> its version header",
        ),
        "include_folders": attr.string_dict(
            doc = "library -> a folder to search besides /usr/include",
        ),
        "linkopts": attr.string_list_dict(
            doc = "library -> link options that pkg-config does not give",
        ),
        "pkg_config": attr.string_list_dict(
            doc = "library -> its pkg-config modules",
        ),
        "tools": attr.string_dict(doc = "program -> its Debian package"),
    },
    configure = True,
    environ = ["PATH", "PKG_CONFIG_PATH"],
    local = True,
)
