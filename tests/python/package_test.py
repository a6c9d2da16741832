#!/usr/bin/env python3
"""The package without a coordinator: its imports, its view of the C interface,
and its errors when the library is missing or refuses something."""

import array
import ast
import ctypes
import glob
import os
import re
import subprocess
import sys
import unittest
from unittest import mock

PACKAGE = os.path.abspath("python")
LIBRARY = os.path.abspath("capi/libcoxswain_c.so")
# Of the standard library of 3.9, whichever version runs this.
MODULES = {
    "__future__", "atexit", "contextlib", "ctypes", "dataclasses", "enum",
    "functools", "json", "math", "operator", "os", "sys", "types", "typing",
}

FRAMEWORKS = {
    "accelerate", "coxswain", "lightning", "pytorch_lightning", "ray", "torch",
    "transformers",
}

os.environ["COXSWAIN_LIBRARY"] = LIBRARY
sys.path.insert(0, PACKAGE)

import coxswain  # noqa: E402
from coxswain import _data, _library, errors, session  # noqa: E402


def run(code, **variables):
    """Runs a program with the package; returns what it writes to stderr."""
    kept = {k: v for k, v in os.environ.items() if k != "COXSWAIN_LIBRARY"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(kept, PYTHONPATH=PACKAGE, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def imports(path):
    """Returns the packages that a file of Python 3.9 imports."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path, feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


class ImportTest(unittest.TestCase):
    def test_loads_neither_torch_nor_the_library(self):
        code = (
            "import sys, coxswain\n"
            "names = {name.split('.')[0] for name in sys.modules}\n"
            "assert not names & {'torch', 'numpy', 'grpc', 'google'}, names\n"
            "maps = open('/proc/self/maps').read()\n"
            "assert 'libcoxswain_c' not in maps\n"
        )
        status, _, output = run(code)
        self.assertEqual((status, output), (0, ""))

    def test_is_of_python_3_9_and_the_standard_library(self):
        core = [
            module.__file__
            for name, module in sys.modules.items()
            if name.split(".")[0] == "coxswain"
        ]
        self.assertGreaterEqual(len(core), 6)
        for path in core:
            for name in imports(path):
                self.assertIn(name, MODULES, path)

    def test_integrations_import_their_frameworks_and_no_more(self):
        paths = glob.glob(PACKAGE + "/coxswain/**/*.py", recursive=True)
        self.assertGreaterEqual(len(paths), 18)
        for path in paths:
            for name in imports(path):
                if name not in sys.stdlib_module_names:
                    self.assertIn(name, FRAMEWORKS, path)

    def test_every_public_name_is_documented(self):
        for name in coxswain.__all__:
            thing = getattr(coxswain, name)
            self.assertTrue(thing.__doc__, name)
            if name in ("Checkpoints", "Session", "Store", "Schedule"):
                for method, value in vars(thing).items():
                    if not method.startswith("_"):
                        value = getattr(value, "__func__", value)
                        self.assertTrue(value.__doc__, (name, method))


class LibraryTest(unittest.TestCase):
    def test_a_missing_library_is_one_sentence(self):
        use = "import coxswain; coxswain.canonical_hook('noop')"
        status, _, output = run(use)
        self.assertEqual(status, 1)
        self.assertRegex(
            output.splitlines()[-1],
            r"^ImportError: libcoxswain_c.so is not installed beside the "
            r"package .* set COXSWAIN_LIBRARY to its path$",
        )

    def test_another_file_is_one_sentence(self):
        use = "import coxswain; coxswain.canonical_hook('noop')"
        for path in ("/nowhere/x.so", __file__, "libc.so.6"):
            status, _, output = run(use, COXSWAIN_LIBRARY=path)
            self.assertEqual(status, 1, path)
            self.assertRegex(
                output.splitlines()[-1],
                "^ImportError: .*%s is no library of Coxswain that can be "
                "loaded: " % re.escape(path),
            )

    def test_another_version_of_the_interface_is_one_sentence(self):
        use = (
            "from coxswain import _library\n"
            "_library.ABI_MAJOR, _library.ABI_MINOR = %s\n"
            "_library.library()\n"
        )
        for needed, ok in (("1, 1", True), ("2, 0", False), ("1, 9", False)):
            status, _, output = run(use % needed, COXSWAIN_LIBRARY=LIBRARY)
            self.assertEqual(status == 0, ok, output)
            if not ok:
                self.assertIn("this package needs", output.splitlines()[-1])

    def test_waits_in_the_background_end_with_their_block(self):
        lib = _library.library()
        with self.assertRaises(KeyError), coxswain.background():
            with coxswain.background():
                pass
            self.assertEqual(lib.cx_set_background(1), 1)
            raise KeyError
        self.assertEqual(lib.cx_set_background(0), 0)

    def test_sees_the_functions_and_structs_of_the_header(self):
        with open("capi/coxswain.h", encoding="utf-8") as file:
            header = re.sub(r"//.*", "", file.read())
        declared = re.findall(r"^CX_API [^;]*?\b(cx_\w+)\(", header, re.M)
        self.assertEqual(sorted(declared), sorted(_library.FUNCTIONS))
        named = {
            "cx_" + re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower(): value
            for name, value in vars(_library).items()
            if isinstance(value, type) and issubclass(value, ctypes.Structure)
            and value is not ctypes.Structure
        }
        structs = re.findall(
            r"typedef struct (\w+) \{(.*?)\n\} \1;", header, re.DOTALL
        )
        self.assertEqual(sorted(dict(structs)), sorted(named))
        for name, body in structs:
            fields = re.findall(r"\b(\w+);", body)
            self.assertEqual(
                fields, [field[0] for field in named[name]._fields_], name
            )
            for line, (_, kind) in zip(
                body.strip().split(";"), named[name]._fields_
            ):
                size = 4 if re.search(
                    r"\b(int32_t|cx_code|cx_dtype|cx_event_kind)\s+\w+$",
                    line.strip(),
                ) else 8
                self.assertEqual(ctypes.sizeof(kind), size, (name, line))


class ErrorsTest(unittest.TestCase):
    def test_are_what_python_calls_them_too(self):
        for code, kind, expected in (
            (3, 0, (coxswain.InvalidArgument, ValueError)),
            (4, 0, (coxswain.DeadlineExceeded, TimeoutError)),
            (4, 3, (coxswain.MembersMissing, TimeoutError)),
            (5, 0, (coxswain.NotFound, LookupError)),
            (10, 1, (coxswain.RanksDiffer, RuntimeError)),
            (10, 2, (coxswain.PeerLost, RuntimeError)),
            (14, 0, (coxswain.Unavailable, ConnectionError)),
            (13, 0, (coxswain.Error, RuntimeError)),
        ):
            error = errors.make(code, kind, "it is so", (1, 2), 7)
            for one in expected:
                self.assertIsInstance(error, one)
            self.assertEqual(str(error), "it is so")
            self.assertEqual(error.code, code)
            self.assertEqual(error.ranks, (1, 2))
            self.assertEqual(error.generation, 7)

    def test_of_a_newer_library_are_errors_too(self):
        error = errors.make(77, 99, "it is so")
        self.assertIs(error.code, coxswain.Code.UNKNOWN)
        self.assertIs(session.EventKind(77), session.EventKind.WARNING)

    def test_a_wrong_hook_lists_the_valid_ones(self):
        with self.assertRaises(coxswain.InvalidArgument) as raised:
            coxswain.canonical_hook("powersdg(rank=4)")
        self.assertIn("powersgd", str(raised.exception))
        self.assertIn("allreduce", str(raised.exception))

    def test_arguments_are_checked_here_too(self):
        for plan in ({"tail": ""}, {"tail": "a b"}, {"hook": "nohook"}):
            with self.assertRaises(coxswain.InvalidArgument):
                coxswain.Session.join(plan=plan, environment=False)
        with self.assertRaisesRegex(
            coxswain.InvalidArgument, "COXSWAIN_COORDINATOR is not set"
        ):
            coxswain.Session.join(environment=False)
        with self.assertRaisesRegex(coxswain.InvalidArgument, "NUL"):
            coxswain.canonical_hook("a\0b")
        with self.assertRaises(coxswain.InvalidArgument):
            coxswain.Session.join(join_timeout=-1, environment=False)
        with self.assertRaisesRegex(coxswain.InvalidArgument, "UTF-8"):
            coxswain.canonical_hook("a\udcff")
        for name in ("slot", "world_size", "min_world_size"):
            for value in (2**31, "1", 1.5):
                with self.assertRaisesRegex(coxswain.InvalidArgument, name):
                    coxswain.Session.join(environment=False, **{name: value})
        with self.assertRaisesRegex(coxswain.InvalidArgument, "shape of 'w'"):
            coxswain.Session.join(
                parameters=[coxswain.Parameter("w", (2**63,))],
                environment=False,
            )

    def test_a_timeout_is_rounded_up(self):
        for seconds, expected in (
            (0, 0), (0.0001, 1), (1, 1000), (1.0001, 1001),
            (float("inf"), 2**53),
        ):
            self.assertEqual(_library.milliseconds(seconds), expected)
        with self.assertRaises(coxswain.InvalidArgument):
            _library.milliseconds(float("nan"))

    def test_a_format_of_another_size_is_refused(self):
        numbers = array.array("i", [1, 2])
        with mock.patch.dict(_data._FORMATS, i="int64"):
            with self.assertRaisesRegex(coxswain.InvalidArgument, "format"):
                _data.Elements(numbers)
        with _data.Elements(numbers) as elements:
            self.assertEqual(elements.arguments[1], 2)


class CallTest(unittest.TestCase):
    def test_a_second_signal_does_not_keep_it_from_being_cancelled(self):
        output = []

        class Library:
            def cx_begin(self, place):
                place._obj.value = 7
                return _library.AGAIN

            def cx_wait(self, place):
                output.append("wait")
                raise KeyboardInterrupt("first")

            def cx_cancel(self, place):
                output.append("cancel")
                if output.count("cancel") == 1:
                    raise KeyboardInterrupt("second")
                place._obj.value = 0
                return 0

        with mock.patch.object(_library, "library", Library):
            with self.assertRaisesRegex(KeyboardInterrupt, "second"):
                _library.call("cx_begin")
        self.assertEqual(output, ["wait", "cancel", "cancel"])


class HooksTest(unittest.TestCase):
    def test_are_read_in_the_words_of_accelerate(self):
        self.assertEqual(
            coxswain.hook_from_yaml(
                '{"comm_hook": "power_sgd", "comm_wrapper": "bf16",'
                ' "comm_state_option": {"matrix_approximation_rank": 2}}'
            ),
            "bf16(powersgd(rank=2))",
        )
        self.assertEqual(coxswain.canonical_hook(" fp16 "), "fp16")
        self.assertIn("powersgd", coxswain.hooks_json())


if __name__ == "__main__":
    unittest.main()
