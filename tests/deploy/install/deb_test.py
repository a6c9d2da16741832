#!/usr/bin/env python3
"""The Debian package is sound, and goes in and out without a trace."""

import gzip
import os
import re
import shutil
import subprocess
import tempfile
import unittest

COXSWAIN = os.path.abspath("cli/coxswain")
TIMEOUT_S = 120
CONFIGURATION = "etc/coxswain/coordinator.env"


def run(*command, **options):
    done = subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S, **options)
    if done.returncode != 0:
        raise AssertionError("%s: %s" % (" ".join(command), done.stdout))
    return done.stdout


def files_below(root):
    return sorted(
        os.path.relpath(os.path.join(folder, name), root)
        for folder, _, names in os.walk(root) for name in names)


class DebTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("dpkg-shlibdeps"):
            print("SKIPPED: no dpkg-shlibdeps here (Debian package dpkg-dev), "
                  "so no package was built", flush=True)
            raise unittest.SkipTest("no dpkg-shlibdeps")
        cls.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.package = run(
            "deploy/build_deb.sh", "--program", COXSWAIN, "--out",
            cls.folder).splitlines()[-1]
        cls.content = os.path.join(cls.folder, "content")
        run("dpkg-deb", "--raw-extract", cls.package, cls.content)
        cls.files = [
            name for name in files_below(cls.content)
            if not name.startswith("DEBIAN/")]

    def path(self, name):
        return os.path.join(self.content, name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def test_has_its_version_and_what_it_links(self):
        output = run(COXSWAIN, "version").split()[1]
        self.assertEqual(run("dpkg-deb", "-f", self.package,
                             "Version").strip(), output)
        depends = run("dpkg-deb", "-f", self.package, "Depends")
        for library in ("libc6", "libgrpc++", "libsqlite3-0"):
            self.assertIn(library, depends)
        self.assertNotIn("torch", depends)
        # For workers whose libtorch is Debian's; a coordinator needs none.
        self.assertNotIn("blas", depends)
        self.assertEqual(run("dpkg-deb", "-f", self.package,
                             "Recommends").strip(), "libopenblas0-pthread")

    def test_files_are_where_debian_wants_them(self):
        for name in (
                "usr/bin/coxswain",
                "usr/share/man/man1/coxswain.1.gz",
                "usr/share/bash-completion/completions/coxswain",
                "usr/share/zsh/vendor-completions/_coxswain",
                "usr/share/fish/vendor_completions.d/coxswain.fish",
                "usr/share/doc/coxswain/copyright",
                "usr/share/doc/coxswain/changelog.gz",
                "lib/systemd/system/coxswain-coordinator.service",
                "lib/systemd/system/coxswain-worker@.service",
                CONFIGURATION):
            self.assertIn(name, self.files)
        self.assertFalse(
            [name for name in self.files if name.startswith("usr/local")])

    def test_modes_owners_and_sums(self):
        listing = run("dpkg-deb", "-c", self.package)
        for line in listing.splitlines():
            self.assertRegex(line, r"^(drwxr-xr-x|-rw[x-]r-[x-]r-[x-]) "
                                   r"root/root ")
        run("md5sum", "--check", "--quiet", "DEBIAN/md5sums",
            cwd=self.content)
        summed = [line.split("  ")[1] for line in
                  self.read("DEBIAN/md5sums").splitlines()]
        self.assertEqual(sorted(summed), self.files)
        with open(self.path("usr/bin/coxswain"), "rb") as file:
            self.assertEqual(file.read(4), b"\x7fELF")
        self.assertNotIn(".debug_info", run(
            "readelf", "--sections", "--wide",
            self.path("usr/bin/coxswain")))

    def test_all_configuration_is_kept_on_upgrade(self):
        listed = self.read("DEBIAN/conffiles").split()
        self.assertEqual(listed, [
            "/" + name for name in self.files if name.startswith("etc/")])

    def test_scripts_are_valid(self):
        for name in ("postinst", "prerm", "postrm"):
            run("sh", "-n", self.path("DEBIAN/" + name))

    def test_goes_in_and_out_without_a_trace(self):
        if os.geteuid() != 0:
            print("SKIPPED: dpkg installs for root only, so the package was "
                  "not installed", flush=True)
            self.skipTest("not root")
        root = os.path.join(self.folder, "root")
        admin = os.path.join(root, "var/lib/dpkg")
        os.makedirs(os.path.join(admin, "info"))
        os.makedirs(os.path.join(admin, "updates"))
        open(os.path.join(admin, "status"), "w", encoding="utf-8").close()

        def dpkg(*arguments):
            run("dpkg", "--root=" + root, "--force-depends",
                "--force-script-chrootless", "--log=/dev/null", *arguments)

        def installed():
            return [name for name in files_below(root)
                    if not name.startswith("var/lib/dpkg/")]

        configuration = os.path.join(root, CONFIGURATION)
        dpkg("--install", self.package)
        self.assertEqual(installed(), self.files)
        run(os.path.join(root, "usr/bin/coxswain"), "version")
        with open(configuration, "a", encoding="utf-8") as file:
            file.write("COXSWAIN_LEASE=20s\n")
        dpkg("--force-confold", "--install", self.package)
        with open(configuration, encoding="utf-8") as file:
            self.assertIn("COXSWAIN_LEASE=20s", file.read())
        dpkg("--remove", "coxswain")
        self.assertEqual(installed(), [CONFIGURATION])
        dpkg("--purge", "coxswain")
        self.assertEqual(installed(), [])
        self.assertFalse(os.path.exists(os.path.join(root, "usr")))

    def test_the_manual_page_has_no_mistakes(self):
        page = self.path("usr/share/man/man1/coxswain.1.gz")
        text = gzip.open(page, "rt", encoding="utf-8").read()
        if shutil.which("groff"):
            right = os.path.join(self.folder, "coxswain.1")
            with open(right, "w", encoding="utf-8") as file:
                file.write(text)
            self.assertEqual(self.lint(right), "")
            wrong = os.path.join(self.folder, "wrong.1")
            with open(wrong, "w", encoding="utf-8") as file:
                file.write(text + ".NOSUCHMACRO\n")
            self.assertNotEqual(self.lint(wrong), "")
        else:
            print("SKIPPED: no groff here (Debian package groff-base), so the "
                  "page was not linted", flush=True)
        for command in ("serve", "run", "plan set", "checkpoint export"):
            self.assertIn("\n.SS coxswain %s\n" % command, text)
            output = run(COXSWAIN, *command.split(), "--help")
            for option in re.findall(r"^  (--[a-z-]+)", output, re.MULTILINE):
                self.assertIn(option.replace("-", "\\-"), text)

    def lint(self, page):
        """What the formatter warns of."""
        return run("groff", "-man", "-Tutf8", "-ww", "-z", page)

    def complete(self, *words):
        script = self.path("usr/share/bash-completion/completions/coxswain")
        return run(
            "bash", "-c",
            'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
            '_coxswain; printf "%s\\n" "${COMPREPLY[@]}"',
            script, "coxswain", *words).split()

    def test_bash_completes(self):
        self.assertEqual(self.complete("ser"), ["serve"])
        self.assertEqual(self.complete("checkpoint", "ver"), ["verify"])
        self.assertEqual(self.complete("run", "--backend", "tc"), ["tcp"])
        self.assertEqual(self.complete("run", "--log-level", "de"), ["debug"])
        self.assertIn("--max-restarts", self.complete("run", "--"))
        self.assertNotIn("--max-restarts", self.complete("serve", "--"))
        self.assertEqual(self.complete("why", "--timeout", ""), [])

    def test_zsh_and_fish_read_their_files(self):
        for shell, name in (
                ("zsh", "zsh/vendor-completions/_coxswain"),
                ("fish", "fish/vendor_completions.d/coxswain.fish")):
            if shutil.which(shell):
                run(shell, "-n", self.path("usr/share/" + name))
            else:
                print("SKIPPED: no %s here, so its completion was not read"
                      % shell, flush=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
