"""What elastic_state_test runs in the Python that has torch: what newcomers take
of a state while they wait, without a network."""

import ctypes
import functools
import json
import threading
import types
import unittest
import unittest.mock
import warnings

import torch

from coxswain import _library
from coxswain.errors import Code, Error, InvalidArgument, PeerLost
from coxswain.torch import _catch_up, _copies, _generations, _recovery
from coxswain.torch import _stepped
from coxswain.torch._copies import bytes_of
from coxswain.torch._elastic_state import State

OPTIMIZERS = {
    "sgd": lambda given: torch.optim.SGD(given, lr=0.1),
    "momentum": lambda given: torch.optim.SGD(
        given, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "adam": lambda given: torch.optim.Adam(given, lr=0.1, amsgrad=True),
    "adamw": lambda given: torch.optim.AdamW(
        [{"params": given[:1], "lr": 0.2}, {"params": given[1:]}], lr=0.1
    ),
    "rmsprop": lambda given: torch.optim.RMSprop(
        given, lr=0.1, centered=True, momentum=0.5
    ),
    "adagrad": lambda given: torch.optim.Adagrad(given, lr=0.1),
    "adadelta": lambda given: torch.optim.Adadelta(given, lr=0.1),
    "adamax": lambda given: torch.optim.Adamax(given, lr=0.1),
    "nadam": lambda given: torch.optim.NAdam(given, lr=0.1),
    "radam": lambda given: torch.optim.RAdam(given, lr=0.1),
}


class Program:
    """A model with an optimizer, of which one parameter is never used."""

    def __init__(self, seed, make):
        torch.manual_seed(seed)
        self.model = torch.nn.Module()
        self.model.layer = torch.nn.Linear(3, 5)
        self.model.unused = torch.nn.Parameter(torch.randn(2))
        self.optimizer = make(list(self.model.parameters()))
        self.stepped = _stepped.Stepped(self.model, self.optimizer)
        self.state = State(self.model, {"optimizer": self.optimizer}, 0, {})
        self.steps = 0

    def backward(self):
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * 0.9
        self.optimizer.zero_grad()
        x = torch.full((2, 3), float(self.steps)).sin()
        self.model.layer(x).square().sum().backward()

    def step(self):
        """Takes one; returns what a newcomer gets of it."""
        self.backward()
        options, used = self.stepped.options(), self.stepped.used()
        averages = [one.clone() for one, _ in self.stepped.averages()]
        self.optimizer.step()
        return self.stepped.describe(options, used, False), averages

    def bits(self):
        return self.state.checksums()[:2]


def begin(newcomer, member):
    """Has a newcomer take the state of a member."""
    newcomer.stepped.begin(member.stepped.describe(None, [], True))
    copy(newcomer.stepped.parts(), [one for one, _ in member.stepped.parts()])


def copy(places, values):
    assert len(places) == len(values), (len(places), len(values))
    for (place, _), value in zip(places, values):
        assert place.shape == value.shape
        ctypes.memmove(
            place.data_ptr(), value.data_ptr(),
            value.numel() * value.element_size(),
        )


class SteppedTest(unittest.TestCase):
    def test_a_newcomer_has_the_members_bits(self):
        for name, make in OPTIMIZERS.items():
            with self.subTest(name):
                member, newcomer = Program(1, make), Program(2, make)
                for _ in range(3):
                    member.step()
                begin(newcomer, member)
                self.assertEqual(newcomer.bits(), member.bits())
                for _ in range(4):
                    rest, averages = member.step()
                    copy(newcomer.stepped.places_of(rest), averages)
                    newcomer.stepped.step(rest, True)
                    self.assertEqual(newcomer.bits(), member.bits())
                rest = member.stepped.describe(None, [], False)
                newcomer.stepped.step(rest, False)
                self.assertEqual(newcomer.bits(), member.bits())
                newcomer.stepped.forget()
                self.assertIsNone(newcomer.model.layer.weight.grad)

    def test_it_goes_back_to_what_it_had(self):
        make = OPTIMIZERS["adamw"]
        member, newcomer = Program(1, make), Program(2, make)
        newcomer.step()
        before = newcomer.bits(), newcomer.state.checksums()
        groups = newcomer.optimizer.param_groups
        kept = [dict(one) for one in groups]
        for _ in range(3):
            member.step()
        begin(newcomer, member)
        rest, averages = member.step()
        copy(newcomer.stepped.places_of(rest), averages)
        newcomer.stepped.step(rest, True)
        self.assertNotEqual(newcomer.bits(), before[0])
        newcomer.stepped.undo()
        self.assertEqual(
            (newcomer.bits(), newcomer.state.checksums()), before
        )
        self.assertIs(newcomer.optimizer.param_groups, groups)
        self.assertEqual(
            [one["lr"] for one in groups], [one["lr"] for one in kept]
        )
        newcomer.stepped.undo()  # There is nothing more to undo.
        self.assertEqual(newcomer.bits(), before[0])

    def test_what_is_of_another_optimizer_is_refused(self):
        member = Program(1, OPTIMIZERS["adamw"])
        rest, _ = member.step()
        other = Program(2, OPTIMIZERS["sgd"])  # in one group
        before = other.bits()
        description = json.loads(member.stepped.describe(None, [], True))
        for change in (
            {"state": None}, {"state": [["tuple", [9, ["dict", []]]]]},
            {"tensors": ["Float [999999]"] * len(description["tensors"])},
        ):
            text = json.dumps(dict(description, **change)).encode()
            with self.assertRaises(Error) as raised:
                other.stepped.begin(text)
            self.assertEqual(raised.exception.code, Code.DATA_LOSS, change)
        for function in (
            lambda: other.stepped.step(rest, True),
            lambda: other.stepped.places_of(b'{"used": [1]}'),
        ):
            with self.assertRaises(Error) as raised:
                function()
            self.assertEqual(raised.exception.code, Code.DATA_LOSS)
        self.assertEqual(other.bits(), before)

    def test_what_is_not_known_is_refused(self):
        model = torch.nn.Linear(2, 2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)

        class Own(torch.optim.SGD):
            pass

        other = torch.nn.Linear(2, 2)
        turned = torch.nn.Linear(2, 2)
        turned.weight = torch.nn.Parameter(torch.zeros(2, 3).t())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of the next one
            twice = torch.optim.SGD([model.weight, model.weight], lr=0.1)
        rate = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
        betas = torch.optim.Adam(model.parameters())
        betas.param_groups[0]["betas"] = (torch.tensor(0.9), 0.999)
        for part, given in (
            ("LBFGS", (model, torch.optim.LBFGS(model.parameters()), {})),
            ("Own", (model, Own(model.parameters(), lr=0.1), {})),
            ("`also`", (model, sgd, {"second": sgd})),
            ("the model has not", (other, sgd, {})),
            ("not contiguous", (
                turned, torch.optim.SGD(turned.parameters(), lr=0.1), {}
            )),
            ("a parameter twice", (model, twice, {})),
            ("'lr' is a tensor", (model, rate, {})),
            ("'betas' is a tensor", (model, betas, {})),
            ("fused", (
                model, torch.optim.SGD(model.parameters(), lr=1, fused=True), {}
            )),
        ):
            self.assertIn(part, _stepped.refusal(*given))
        self.assertEqual(_stepped.refusal(model, sgd, {"x": object()}), "")

    def test_what_turns_out_to_be_unknown_is_not_sent(self):
        program = Program(1, OPTIMIZERS["adam"])
        program.step()
        state = program.optimizer.state[program.model.layer.weight]
        state["exp_avg"] = state["exp_avg"][:2]
        self.assertRaises(InvalidArgument, program.stepped.parts)
        program.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
        self.assertRaises(InvalidArgument, program.stepped.options)


class NewcomerTest(unittest.TestCase):
    """By the functions that the library calls."""

    def setUp(self):
        self.program = Program(2, OPTIMIZERS["adamw"])
        self.newcomer = _catch_up.Newcomer(self.program.stepped)
        self.calls = self.newcomer._calls

    def call(self, name, rest, *more):
        return getattr(self.calls, name)(
            None, ctypes.cast(ctypes.c_char_p(rest), ctypes.c_void_p),
            len(rest), *more,
        )

    def parts(self, name, rest=b""):
        parts = ctypes.POINTER(_library.Part)()
        count = ctypes.c_size_t()
        code = self.call(
            name, rest, ctypes.byref(parts), ctypes.byref(count)
        )
        self.assertEqual(code, 0)
        return parts[: count.value]

    def fill(self, parts, tensors):
        self.assertEqual(len(parts), len(tensors))
        for part, tensor in zip(parts, tensors):
            bits = bytes_of(tensor)
            self.assertEqual(part.size, len(bits))
            ctypes.memmove(part.data, bits, len(bits))

    def test_takes_state_and_steps(self):
        member = Program(1, OPTIMIZERS["adamw"])
        member.step()
        rest = member.stepped.describe(None, [], True)
        self.assertEqual(self.call("begin", rest), 0)
        self.fill(
            self.parts("state"), [one for one, _ in member.stepped.parts()]
        )
        rest, averages = member.step()
        self.fill(self.parts("averages", rest), averages)
        self.assertEqual(self.call("step", rest, 1), 0)
        self.assertEqual(self.program.bits(), member.bits())

    def test_an_error_is_a_code_with_a_text(self):
        library = types.SimpleNamespace(cx_hook_fail=unittest.mock.Mock())
        with unittest.mock.patch.object(
            _library, "library", lambda: library
        ):
            self.assertEqual(self.call("begin", b"{"), Code.DATA_LOSS)
            text = library.cx_hook_fail.call_args[0][0]
            self.assertIn(b"cannot be read", text)
            with unittest.mock.patch.object(
                self.program.stepped, "undo", side_effect=ValueError("no")
            ):
                self.assertEqual(self.calls.undo(None), Code.DATA_LOSS)
            text = library.cx_hook_fail.call_args[0][0]
            self.assertIn(b"start this worker again", text)
            with unittest.mock.patch.object(
                self.program.stepped, "parts", side_effect=KeyboardInterrupt
            ):
                code = self.calls.state(None, None, 0, None, None)
            self.assertEqual(code, Code.INTERNAL)

    def test_a_finish_that_is_interrupted_goes_back(self):
        before = self.program.bits()
        member = Program(1, OPTIMIZERS["adamw"])
        begin(self.program, member)
        self.assertNotEqual(self.program.bits(), before)
        self.newcomer._handle = 1
        session = unittest.mock.MagicMock()
        standing = _recovery.Standing()
        with unittest.mock.patch.object(
            _library, "call", side_effect=KeyboardInterrupt
        ), self.assertRaises(KeyboardInterrupt):
            self.newcomer.joined(lambda: session, standing)
        self.assertEqual(self.program.bits(), before)
        self.assertIsNone(standing.caught_up)
        session.__exit__.assert_called_once()

    def test_the_interpreter_ends_its_calls_once(self):
        library = unittest.mock.Mock()
        library.cx_newcomer_listen.return_value = 0
        at_exit = _library.end_calls_at_exit
        at_exit.cache_clear()
        self.addCleanup(at_exit.cache_clear)
        options = _library.make(_library.JoinOptions)
        with unittest.mock.patch.object(
            _library, "library", lambda: library
        ), unittest.mock.patch.object(
            _library.atexit, "register"
        ) as registered:
            for _ in range(2):
                _catch_up.Newcomer(self.program.stepped).listen(options)
        registered.assert_called_once_with(library.cx_hooks_end)


class GenerationsTest(unittest.TestCase):
    def test_what_never_became_a_members_is_undone(self):
        generations = _generations.Generations(
            unittest.mock.Mock(), types.SimpleNamespace(requested=False),
            unittest.mock.Mock(), on_cpu=True, backend=None, timeout=1,
        )
        undo, forget = unittest.mock.Mock(), unittest.mock.Mock()

        def join():
            generations.standing.caught_up = _recovery.CaughtUp(
                lineage=7, trained=2, step=3, undo=undo, forget=forget
            )
            return unittest.mock.Mock()

        with unittest.mock.patch.object(
            _generations, "_has_joined", False
        ), unittest.mock.patch.object(
            _generations._session, "begin_generation",
            side_effect=KeyboardInterrupt,
        ), self.assertRaises(KeyboardInterrupt):
            generations.run(join)
        undo.assert_called_once_with()
        forget.assert_not_called()
        self.assertIsNone(generations.standing.caught_up)


def facts(**given):
    made = dict(
        has_state=1, lineage=7, recovered=2, trained=2, step=10, layout=1,
        parameters=3, rest=4, loose=5,
    )
    made.update(given)
    return _recovery._Facts(**made)


class FactsTest(unittest.TestCase):
    def newcomer(self, **given):
        return facts(**{
            **dict(has_state=0, lineage=99, recovered=0, trained=0, step=0,
                   loose=6, caught_lineage=7, caught_trained=2,
                   caught_step=10),
            **given,
        })

    def test_has_the_state_only_if_all_of_it_is_the_same(self):
        self.assertTrue(self.newcomer().has_caught_up_with(facts()))
        for other in (
            facts(has_state=0), facts(step=11), facts(trained=3),
            facts(lineage=8), facts(parameters=4), facts(rest=5),
        ):
            self.assertFalse(self.newcomer().has_caught_up_with(other), other)
        none = self.newcomer(caught_step=0)
        self.assertFalse(none.has_caught_up_with(facts()))

    def test_is_no_source_and_in_no_majority(self):
        ranks = [self.newcomer(parameters=9), self.newcomer(parameters=9),
                 facts()]
        self.assertEqual(_recovery._source(ranks), 2)
        self.assertEqual(_recovery._majority(ranks, 2), (2, []))

    def test_its_counters_are_no_warning(self):
        ranks = [facts(), facts(loose=6), self.newcomer()]
        found = _recovery._warnings(ranks, 0, [1, 2])
        self.assertEqual(len(found), 1)
        self.assertIn("of rank 1 were not", found[0])
        self.assertEqual(_recovery._warnings(ranks, 0, [2]), [])


class Library:
    """In place of the C library: a source that keeps what it is given."""

    def __init__(self):
        self.wants = 0
        self.calls = []

    def cx_source_open(self, handle, lineage):
        self.calls.append(("open", lineage))
        return 0

    def cx_source_wants(self, handle, wants):
        wants._obj.value = self.wants
        return 0

    def cx_source_averages(self, handle, averages, count):
        self.calls.append(("averages", count))
        return 0

    def cx_source_step(self, handle, step):
        given = step._obj
        rest = ctypes.string_at(given.rest, given.rest_size)
        self.calls.append(
            ("step", given.flags, given.progress, rest, given.state_count)
        )
        return 0

    def cx_source_drop(self, handle):
        self.calls.append(("drop",))
        return 0


class SourceTest(unittest.TestCase):
    def setUp(self):
        self.library = Library()
        patch = unittest.mock.patch.object(
            _library, "library", lambda: self.library
        )
        patch.start()
        self.addCleanup(patch.stop)
        self.program = Program(1, OPTIMIZERS["adam"])
        self.program.step()

    def source(self, rank=0):
        session = types.SimpleNamespace(
            rank=rank, _handle=1, _check=lambda code: self.assertEqual(code, 0)
        )
        source = _catch_up.Source(session, self.program.stepped, 7)
        self.assertEqual(self.library.calls.pop(), ("open", 7))
        return source

    def take(self, source, progress, has_closure=False, cut_short=False):
        """Has the program take a step; returns what the library got."""
        self.program.backward()
        source.before_step(True, has_closure)
        self.program.optimizer.step()
        if not cut_short:
            source.after_step()
        source.after_window(progress)
        found, self.library.calls = self.library.calls, []
        return found

    def test_sends_what_newcomers_want(self):
        source = self.source()
        self.assertEqual(self.take(source, 4), [])
        self.library.wants = 2
        (begun,) = self.take(source, 5)
        # Three parameters, and of two that are used a number of steps, two
        # averages and a maximum.
        self.assertEqual(begun[:3] + begun[4:], ("step", 0, 5, 3 + 2 * 4))
        self.assertIn("state", json.loads(begun[3]))
        self.library.wants = 1
        averages, step = self.take(source, 6)
        self.assertEqual(averages, ("averages", 2))
        self.assertEqual(step[:3], ("step", 1, 6))
        rest = json.loads(step[3])
        self.assertEqual(rest["used"], [0, 1, 1])
        self.assertNotIn("state", rest)
        # A window whose step was skipped, and the last one.
        source.after_window(7)
        source.end(7)
        skipped, last = self.library.calls
        self.assertEqual(skipped[:3], ("step", 0, 7))
        self.assertEqual(last[:3], ("step", 2, 7))

    def test_other_ranks_describe_nothing(self):
        source = self.source(rank=1)
        self.library.wants = 3
        _, step = self.take(source, 5)
        self.assertEqual(step[3], b"")

    def test_gives_up_what_newcomers_could_not_take(self):
        for change in (
            {"has_closure": True}, {"cut_short": True},
            {"lr": torch.tensor(0.1)},
        ):
            source = self.source()
            self.library.wants = 1
            group = self.program.optimizer.param_groups[0]
            before = group["lr"]
            group["lr"] = change.pop("lr", before)
            with self.assertLogs(_catch_up._log):
                found = self.take(source, 5, **change)
            group["lr"] = before
            self.assertEqual(found[-1], ("drop",), change)
            self.assertNotIn("step", [one[0] for one in found])
            self.assertEqual(self.take(source, 6), [])


class Ranks:
    """Sessions of several ranks, each a thread, that exchange by memory. At the
    broadcast number `lost` a member is lost."""

    def __init__(self, size, lost=None):
        self.size = size
        self._lost = lost
        self._barrier = threading.Barrier(size, timeout=60)
        self._slots = [b""] * size

    def run(self, *works):
        """Returns what each rank's function of its session returns, or its
        error."""
        found = [None] * self.size

        def call(rank):
            session = types.SimpleNamespace(
                rank=rank, world_size=self.size, generation=3, count=0
            )
            session.all_gather = functools.partial(self._gather, session)
            session.broadcast = functools.partial(self._broadcast, session)
            try:
                found[rank] = works[rank](session)
            except Exception as error:
                found[rank] = error
                self._barrier.abort()

        threads = [
            threading.Thread(target=call, args=[rank])
            for rank in range(self.size)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return found

    def _share(self, session, data, take):
        self._slots[session.rank] = bytes(memoryview(data).cast("B"))
        self._barrier.wait()
        take()
        self._barrier.wait()

    def _gather(self, session, data, output):
        def take():
            memoryview(output).cast("B")[:] = b"".join(self._slots)

        self._share(session, data, take)

    def _broadcast(self, session, data, root):
        session.count += 1
        if session.count == self._lost:
            raise PeerLost("rank 0 is lost")

        def take():
            memoryview(data).cast("B")[:] = self._slots[root]

        self._share(session, data, take)


class RecoveryTest(unittest.TestCase):
    """A member, and a newcomer that has taken a state while it waited."""

    def setUp(self):
        make = OPTIMIZERS["adamw"]
        self.member, self.newcomer = Program(1, make), Program(2, make)
        for one in (self.member, self.newcomer):
            one.model.register_buffer("seen", torch.tensor(float(one.steps)))
            one.scheduler = torch.optim.lr_scheduler.LambdaLR(
                one.optimizer, lambda step: 0.5 ** step
            )
            one.state = State(
                one.model,
                {"optimizer": one.optimizer, "scheduler": one.scheduler}, 0, {},
            )
        self.before = self.newcomer.state.checksums()
        for _ in range(3):
            self.member.step()
            self.member.scheduler.step()
        self.member.model.seen += 3
        self.member.state.counter["rows"] = 12
        self.member.state.keep(3)
        begin(self.newcomer, self.member)
        self.standings = [
            _recovery.Standing(lineage=7, recovered=2, trained=2),
            _recovery.Standing(damage=("a piece was damaged",)),
        ]
        self.standings[1].caught_up = _recovery.CaughtUp(
            lineage=7, trained=2, step=3, undo=self.newcomer.stepped.undo,
            forget=self.newcomer.stepped.forget,
        )

    def recover(self, **more):
        programs = self.member, self.newcomer
        return Ranks(2, **more).run(*[
            functools.partial(
                lambda one, standing, session: _recovery.recover(
                    session, one.state, standing
                ),
                one, standing,
            )
            for one, standing in zip(programs, self.standings)
        ])

    def assert_same(self):
        self.assertEqual(
            self.newcomer.state.checksums(), self.member.state.checksums()
        )
        self.assertEqual(self.newcomer.state.step, 3)
        self.assertEqual(self.newcomer.state.counter, {"rows": 12})
        self.assertEqual(self.newcomer.model.seen, self.member.model.seen)
        self.assertEqual(self.newcomer.scheduler.last_epoch, 3)
        standing = self.standings[1]
        self.assertEqual((standing.lineage, standing.trained), (7, 2))
        self.assertIsNone(standing.caught_up)

    def test_what_is_the_members_is_not_copied(self):
        with unittest.mock.patch.object(_recovery, "_copy") as copied:
            member, newcomer = self.recover(lost=3)
        copied.assert_not_called()
        self.assertTrue(newcomer.caught_up, newcomer)
        self.assertFalse(newcomer.copied or member.copied or member.caught_up)
        self.assertIsNone(newcomer.source)
        self.assertEqual(newcomer.warnings, ("a piece was damaged",))
        self.assertEqual(member.warnings, ())
        self.assert_same()

    def test_other_bits_are_given_up_and_copied(self):
        with torch.no_grad():
            self.newcomer.model.layer.weight[0, 0] += 1
        with self.assertLogs(_recovery._log):
            member, newcomer = self.recover()
        self.assertTrue(newcomer.copied and not newcomer.caught_up, newcomer)
        self.assertEqual(member.source, 0)
        self.assertIsNone(self.newcomer.stepped._backup)
        self.assert_same()

    def test_without_a_member_it_is_given_up(self):
        self.standings[0] = _recovery.Standing()
        self.member.state.counter.clear()
        self.member.state.keep(0)
        self.standings.reverse()
        self.member, self.newcomer = self.newcomer, self.member
        with self.assertLogs(_recovery._log):
            newcomer, other = self.recover()
        self.assertTrue(newcomer.began and other.copied, newcomer)
        self.assertIsNone(self.standings[0].caught_up)
        # With what it had before, and a lineage of its own.
        self.assertEqual(self.member.state.checksums(), self.before)
        self.assertEqual(self.newcomer.state.checksums(), self.before)
        self.assertNotIn(self.standings[0].lineage, (0, 7))

    def test_a_member_lost_meanwhile_leaves_it_as_it_was(self):
        # The rest, and then the buffers.
        _, lost = self.recover(lost=2)
        self.assertIsInstance(lost, Exception)
        self.assertEqual(self.newcomer.state.counter, {})
        self.assertEqual(self.newcomer.scheduler.last_epoch, 0)
        standing = self.standings[1]
        self.assertEqual(standing.lineage, 0)
        standing.caught_up.undo()
        self.assertEqual(self.newcomer.state.checksums(), self.before)


class BytesTest(unittest.TestCase):
    def test_come_whatever_their_number(self):
        limit = _copies._FIRST_BYTES
        for size, broadcasts in (
            (0, 1), (1, 1), (limit, 1), (limit + 1, 2), (5 * limit, 2),
        ):
            with self.subTest(size):
                sent = bytes(range(1, 200)) * (size // 199 + 1)
                sent = sent[:size]

                def work(data, session):
                    found = _copies.broadcast_bytes(session, data, 1)
                    return found, session.count

                found = Ranks(2).run(
                    functools.partial(work, b""), functools.partial(work, sent)
                )
                self.assertEqual(found, [(sent, broadcasts)] * 2)


class LooseTest(unittest.TestCase):
    def test_leaves_the_optimizers_tensors(self):
        make = OPTIMIZERS["adamw"]
        source, taker = Program(1, make), Program(1, make)
        for one in (source, taker):
            one.step()
        source.optimizer.param_groups[0]["lr"] = 0.5
        source.state.counter["rows"] = 3
        text, tensors = source.state.save_loose()
        self.assertEqual(tensors, [])
        kept = dict(taker.optimizer.state)
        taker.state.take_rest(text, tensors, source.state.save_counter())
        self.assertEqual(taker.state.checksums(), source.state.checksums())
        for parameter, state in kept.items():
            now = taker.optimizer.state[parameter]
            self.assertIs(now["exp_avg"], state["exp_avg"])


if __name__ == "__main__":
    unittest.main()
