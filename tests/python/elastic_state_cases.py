"""What elastic_state_test runs in the Python that has torch."""

import array
import dataclasses
import datetime
import io
import os
import select
import signal
import threading
import types
import unittest
import unittest.mock
import weakref

import numpy
import torch
import torch.distributed as dist

import coxswain
import coxswain.torch
from coxswain.torch import _copies, _drain, _elastic, _generations, _group
from coxswain.torch import _hooks
from coxswain.torch import _recovery, _store
from coxswain.torch._elastic_state import State, tensors_of


def facts(**given):
    made = dict(
        has_state=1, lineage=7, recovered=2, trained=2, step=10, layout=1,
        parameters=3, rest=4, loose=5,
    )
    made.update(given)
    return _recovery._Facts(**made)


class ClosingTest(unittest.TestCase):
    def test_what_a_generation_that_does_not_end_uses_stays(self):
        late = coxswain.DeadlineExceeded("an exchange still uses its buckets")
        session = types.SimpleNamespace(
            generation=3, _handle=-5, close=unittest.mock.Mock(side_effect=late)
        )
        _hooks._in_use[-5, b"train"] = [torch.zeros(1)]
        with self.assertLogs(_generations._logger) as logged:
            _generations._close(session)
        self.assertIn("still uses its buckets", logged.output[0])
        self.assertIn((-5, b"train"), _hooks._in_use)
        session.close.side_effect = None
        _generations._close(session)
        self.assertNotIn((-5, b"train"), _hooks._in_use)


    def test_a_session_closes_while_the_next_one_begins(self):
        recovers = threading.Event()
        happened = []

        def close():
            self.assertTrue(recovers.wait(10))
            happened.append("closed")

        def recover(*unused):
            # What waits for the close before this would wait for ever.
            recovers.set()
            return types.SimpleNamespace(
                generation=1, rank=0, world_size=1, step=0, copied=False,
                caught_up=False, warnings=(),
            )

        def once(session, recovery, held):
            happened.append("trains")
            return session is first  # regroups

        first, second = unittest.mock.Mock(), unittest.mock.Mock()
        first.rejoin.return_value = second
        first.close.side_effect = close
        generations = _generations.Generations(
            types.SimpleNamespace(step=0, roll_back=lambda: None),
            types.SimpleNamespace(requested=False), once,
            on_cpu=True, backend=None, timeout=1,
        )
        with unittest.mock.patch.multiple(
            _generations, recover=recover, _group=unittest.mock.DEFAULT,
            _has_joined=False,
        ), unittest.mock.patch.object(
            _generations._session, "begin_generation"
        ):
            ending = generations.run(lambda: first)
        self.assertEqual(ending, _generations.Ending.FINISHED)
        self.assertEqual(happened, ["trains", "closed", "trains"])
        second.close.assert_not_called()


class SourceTest(unittest.TestCase):
    def assert_source(self, expected, *all_facts):
        self.assertEqual(_recovery._source(all_facts), expected)

    def test_the_lowest_of_the_newest(self):
        self.assert_source(0, facts(), facts())
        self.assert_source(1, facts(), facts(step=11), facts(step=11))

    def test_a_newcomer_is_none(self):
        new = facts(has_state=0, lineage=99, recovered=0, trained=0, step=50)
        self.assert_source(1, new, facts())
        self.assert_source(0, new, new)

    def test_one_that_others_have_trained_without_is_none(self):
        self.assert_source(1, facts(trained=2, step=12), facts(trained=3))

    def test_of_lineages_the_one_with_more_steps(self):
        other = facts(lineage=8, trained=9, step=3)
        self.assert_source(1, other, facts())
        found = _recovery._warnings([other, facts()], 1, [])
        self.assertEqual(len(found), 1)
        self.assertIn("rank 0 has trained apart", found[0])


class MajorityTest(unittest.TestCase):
    def test_most_ranks_are_right(self):
        other = facts(parameters=5)
        for damaged in range(3):
            ranks = [facts(), facts(), facts()]
            ranks[damaged] = other
            source, found = _recovery._majority(ranks, 0)
            self.assertEqual(source, 1 if damaged == 0 else 0)
            self.assertEqual(list(found), [damaged])
        warned = _recovery._warnings(ranks, 0, [], [2])
        self.assertIn("rank 2 had other bits than most ranks", warned[0])

    def test_two_have_none(self):
        ranks = [facts(), facts(rest=5)]
        self.assertEqual(_recovery._majority(ranks, 0), (0, ()))

    def test_ranks_in_other_steps_do_not_count(self):
        ranks = [facts(), facts(rest=5), facts(step=9, rest=5)]
        self.assertEqual(_recovery._majority(ranks, 0), (0, ()))

    def test_newcomers_have_no_bits(self):
        ranks = [facts(has_state=0), facts(has_state=0, rest=5)]
        self.assertEqual(_recovery._majority(ranks, 0), (0, ()))


class ChecksTest(unittest.TestCase):
    def test_other_tensors(self):
        both = [facts(), facts(layout=2)]
        for rank, code in ((0, 10), (1, 9)):
            with self.assertRaises(coxswain.Error) as raised:
                _recovery._check_layouts(both, 0, rank)
            self.assertEqual(raised.exception.code, code)
            self.assertEqual(raised.exception.ranks, (1,))

    def test_other_bits(self):
        both = [facts(), facts(rest=5)]
        with self.assertRaises(coxswain.Error) as raised:
            _recovery._check_bits(both, 0, [0, 1])
        self.assertEqual(raised.exception.code, coxswain.Code.DATA_LOSS)
        self.assertIn("step 10", str(raised.exception))
        _recovery._check_bits(both, 0, [0])
        _recovery._check_bits([facts(), facts(loose=6)], 0, [0, 1])

    def test_no_whole_state(self):
        cut_short = facts(has_state=0)
        new = facts(has_state=0, recovered=0)
        with self.assertRaises(coxswain.Error) as raised:
            _recovery._check_not_lost([new, cut_short], 0)
        self.assertIn("rank 1", str(raised.exception))
        _recovery._check_not_lost([new, new], 0)
        _recovery._check_not_lost([facts(), cut_short], 0)


class Lost(Exception):
    pass


class Recorded:
    """Rank 0, which keeps what its collectives send, in their order."""

    rank, world_size, generation = 0, 2, 5

    def __init__(self, other):
        self.other = other  # rank 1's facts, until it has copied
        self.sent = []

    def all_gather(self, numbers, everything):
        everything[:] = numbers + self.other
        self.other = numbers
        self.sent.append(numbers)

    def broadcast(self, data, root):
        self.sent.append(bytes(data))


class Replayed:
    """Rank 1, whose peer sends this and is then lost."""

    rank, world_size, generation = 1, 2, 5

    def __init__(self, sent):
        self.sent = list(sent)

    def all_gather(self, numbers, everything):
        everything[:] = self._next() + numbers

    def broadcast(self, data, root):
        memoryview(data).cast("B")[:] = self._next()

    def _next(self):
        if not self.sent:
            raise Lost()
        return self.sent.pop(0)


class RecoverTest(unittest.TestCase):
    def made(self, seed, steps):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(steps):
            model(torch.randn(5, 3)).square().sum().backward()
            optimizer.step()
        state = State(model, {"optimizer": optimizer}, steps, {"rows": steps})
        trained = _recovery.Standing(lineage=7, recovered=2, trained=2)
        return state, trained if steps else _recovery.Standing()

    def all_of(self, state):
        return (
            state.step, dict(state.counter), state.checksums(),
            [one.tolist() for one in state.buffers()],
        )

    def sent_to(self, other):
        """Returns what a source of step 4 sends, and all that it has."""
        state, standing = self.made(0, 4)
        session = Recorded(
            array.array("q", dataclasses.astuple(_recovery._facts_of(*other)))
        )
        _recovery.recover(session, state, standing)
        return session.sent, self.all_of(state)

    def test_wherever_the_source_is_lost_no_rank_has_half_of_its_state(self):
        for steps in (0, 3):
            sent, all_of_source = self.sent_to(self.made(1, steps))
            copied = []
            for count in range(len(sent)):
                state, standing = self.made(1, steps)
                before = self.all_of(state), dataclasses.replace(standing)
                with self.assertRaises(Lost):
                    _recovery.recover(
                        Replayed(sent[:count]), state, standing
                    )
                self.assertTrue(state.whole)
                copied.append(standing.trained == 2 and state.step == 4)
                if copied[-1]:
                    self.assertEqual(self.all_of(state), all_of_source)
                else:
                    self.assertEqual((self.all_of(state), standing), before)
            self.assertEqual(sorted(set(copied)), [False, True])

    def test_a_rank_that_cannot_take_the_copy_ends(self):
        state, standing = self.made(1, 0)
        sent, _ = self.sent_to((state, standing))

        def refuse(_):
            raise MemoryError("no room for it")

        state._objects["optimizer"].load_state_dict = refuse
        with self.assertRaises(coxswain.Error) as raised:
            _recovery.recover(Replayed(sent), state, standing)
        self.assertEqual(raised.exception.code, coxswain.Code.DATA_LOSS)
        self.assertIn("no room for it", str(raised.exception))
        self.assertFalse(state.whole)
        self.assertEqual(standing.lineage, 0)


class Alone:
    """A session of one rank, which sends to itself."""

    rank, world_size = 0, 1

    def broadcast(self, data, root):
        pass


class CopiesTest(unittest.TestCase):
    def test_each_tensor_has_memory_of_its_own(self):
        sent = [
            torch.arange(3.0), torch.tensor(7), torch.zeros(0),
            torch.ones(2, 2, dtype=torch.bfloat16),
        ]
        received = _copies.broadcast_tensors(Alone(), sent, 0, True)
        torch.save(received, io.BytesIO())  # Refuses memory of two types.
        for one, other in zip(received, sent):
            self.assertTrue(torch.equal(one, other))
            self.assertEqual(
                one.untyped_storage().nbytes(), one.numel() * one.element_size()
            )


class Stored:
    """A session of one rank, with a store."""

    rank, world_size, ended, job = 0, 1, None, "job"

    def __init__(self):
        self.values = {}
        self.questions = []
        self.store = types.SimpleNamespace(
            set=self.values.__setitem__, get=self._get,
            check=lambda keys: all(key in self.values for key in keys),
            wait=lambda keys, timeout: [self._get(key) for key in keys],
        )

    def _get(self, key, timeout=0):
        self.questions.append(key)
        if key not in self.values:
            raise coxswain.DeadlineExceeded(key)
        return self.values[key]


class WrittenOnceTest(unittest.TestCase):
    def setUp(self):
        self.session = Stored()
        self.store = _store.WrittenOnce(self.session, "torch/x/")

    def test_a_value_that_was_waited_for_is_asked_for_once(self):
        self.session.values["torch/x/1"] = b"its address"
        self.store.wait(["1"], datetime.timedelta(seconds=1))
        self.assertEqual(self.store.get("1"), b"its address")
        self.store.wait(["1"])
        self.assertEqual(self.session.questions, ["torch/x/1"])

    def test_a_value_of_its_own_is_never_asked_for(self):
        self.store.set("0", "own")
        self.assertEqual(self.session.values, {"torch/x/0": "own"})
        self.store.wait(["0"])
        self.assertEqual(self.store.get("0"), b"own")
        self.assertEqual(self.session.questions, [])

    def test_a_value_that_does_not_come_is_named(self):
        with self.assertRaisesRegex(_store._TimedOut, "keys: 1 .job job"):
            self.store.wait(["1"], datetime.timedelta(seconds=1))
        self.session.values["torch/x/1"] = b"late"
        self.assertEqual(self.store.get("1"), b"late")

    def test_gloo_does_not_ask_for_its_own(self):
        dist.ProcessGroupGloo(
            self.store, 0, 1, timeout=datetime.timedelta(seconds=20)
        )
        self.assertEqual(len(self.session.values), 1)
        self.assertEqual(self.session.questions, [])


class LeftBehindTest(unittest.TestCase):
    def test_buckets_of_a_closed_session_are_given_up(self):
        before, now = types.SimpleNamespace(_handle=5), (6, b"train")
        _hooks._in_use.update({(5, b"train"): [1], (5, b"x"): [2], now: [3]})
        self.addCleanup(_hooks._in_use.clear)
        _hooks.forget(before)
        self.assertEqual(_hooks._in_use, {now: [3]})

    def test_a_group_that_is_being_made_is_waited_for_at_the_end(self):
        ended = types.SimpleNamespace(ended=coxswain.PeerLost("rank 1"))
        let, made = threading.Event(), []
        with self.assertRaises(coxswain.PeerLost):
            _group._Maker(lambda: (let.wait(), made.append(1))).made(ended)
        self.assertEqual(made, [])
        let.set()
        _group.finish()
        self.assertEqual(made, [1])

    def test_a_group_has_the_name_of_one_that_failed(self):
        """Other ranks may not have tried that one."""
        keys = []
        session = types.SimpleNamespace(
            rank=0, world_size=1, ended=None,
            store=types.SimpleNamespace(
                set=lambda key, value: keys.append(key)
            ),
        )

        def fails(store, rank, size, timeout):
            store.set("address", "x")
            raise RuntimeError("no luck")

        with unittest.mock.patch.object(dist, "ProcessGroupGloo", fails):
            for _ in range(2):
                with self.assertRaisesRegex(RuntimeError, "no luck"):
                    _group.make(session, True, None, 20)
        self.assertEqual(len(keys), 2)
        self.assertEqual(keys[0], keys[1])

    def test_a_group_connects_while_its_ranks_do_other_things(self):
        session = Stored()
        real, made = dist.ProcessGroupGloo, []

        def noted(store, rank, size, timeout):
            made.append(real(store, rank, size, timeout=timeout))
            return made[-1]

        with unittest.mock.patch.object(dist, "ProcessGroupGloo", noted):
            _group.begin(session, None, 20)
            _group._begun._thread.join()
            self.assertEqual(len(made), 1)
            self.addCleanup(_group.release, [])
            _group.make(session, True, None, 20)
            self.assertEqual(len(made), 1)
            held = [dist.group.WORLD]
            used = held[0]._get_backend(torch.device("cpu"))
            self.assertIs(used, made[0])
            # Those of the program are made of their own stores.
            dist.new_group()
            self.assertEqual(len(made), 2)
        del used
        made.clear()
        _group.release(held)
        _group.finish()

    def test_what_has_kept_a_group_from_connecting_is_raised_by_make(self):
        session = Stored()
        no_luck = unittest.mock.Mock(side_effect=RuntimeError("no luck"))
        with unittest.mock.patch.object(dist, "ProcessGroupGloo", no_luck):
            _group.begin(session, None, 20)
            with self.assertRaisesRegex(RuntimeError, "no luck"):
                _group.make(session, True, None, 20)
        self.assertEqual(no_luck.call_count, 1)
        self.assertFalse(dist.is_initialized())

    def test_a_group_that_a_generation_did_not_come_to_is_given_up(self):
        _group.begin(Stored(), None, 20)
        _group._begun._thread.join()
        group = weakref.ref(_group._begun)
        _group.release([])
        _group.finish()
        self.assertIsNone(_group._begun)
        self.assertIsNone(group())

    def test_a_back_end_of_the_program_is_not_begun(self):
        _group.begin(Stored(), "gloo", 20)
        self.assertIsNone(_group._begun)

    def test_a_group_that_waits_for_a_rank_holds_nobody_up(self):
        real, other = dist.ProcessGroupGloo, []

        def both(store, rank, size, timeout):
            thread = threading.Thread(
                target=lambda: other.append(real(store, 1, 2, timeout=timeout))
            )
            thread.start()
            mine = real(store, rank, size, timeout=timeout)
            thread.join()
            return mine

        _group._register()
        with unittest.mock.patch.object(dist, "ProcessGroupGloo", both):
            dist.init_process_group(
                _group.GLOO, store=dist.HashStore(), rank=0, world_size=2,
                timeout=datetime.timedelta(seconds=20),
            )
        held = [dist.group.WORLD]
        exchange = held[0].allreduce([torch.ones(3)]).get_future()
        _group.release(held)
        # So this thread goes on meanwhile, and need not wait for the timeout.
        other.clear()
        _group.finish()
        with self.assertRaises(RuntimeError) as raised:
            exchange.value()
        self.assertRegex(str(raised.exception), "(?i)connection|peer")
        self.assertNotRegex(str(raised.exception), "(?i)timed out")


class StateTest(unittest.TestCase):
    def made(self, kind, **options):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)
        )
        optimizer = kind(model.parameters(), **options)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=10, cycle_momentum=False,
        )
        objects = {"optimizer": optimizer, "scheduler": scheduler}
        return model, State(model, objects, 0, {}), optimizer, scheduler

    def train(self, model, optimizer, scheduler):
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        scheduler.step()

    def test_it_is_the_same_where_it_was_copied(self):
        for kind, options in (
            (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
            (torch.optim.AdamW, {"amsgrad": True}),
            (torch.optim.Adagrad, {}),
            (torch.optim.NAdam, {}),
            (torch.optim.RMSprop, {"momentum": 0.5}),
        ):
            model, state, *others = self.made(kind, **options)
            self.train(model, *others)
            state.counter["rows"] = 2**60
            _, copy, *_ = self.made(kind, **options)
            self.assertNotEqual(copy.checksums(), state.checksums())
            text, tensors = state.save()
            expected = [(one.dtype, one.shape) for one in tensors]
            found = [(one.dtype, one.shape) for one in tensors_of(text)]
            self.assertEqual(found, expected)
            copy.take(
                5, [one.clone() for one in state.parameters()],
                [one.clone() for one in state.buffers()], text,
                [one.clone() for one in tensors], state.save_counter(),
            )
            self.assertEqual(copy.checksums(), state.checksums(), kind)
            for one, other in zip(copy.buffers(), state.buffers()):
                self.assertTrue(torch.equal(one, other))
            self.assertEqual((copy.step, copy.counter["rows"]), (5, 2**60))

    def test_an_optimizer_keeps_types_that_are_not_those_of_parameters(self):
        def made():
            layer = torch.nn.Linear(3, 4, dtype=torch.bfloat16)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            return layer, State(layer, {"optimizer": optimizer}, 0, {}), optimizer

        layer, state, optimizer = made()
        mean = torch.full((3,), 1 / 3)
        optimizer.state[layer.weight] = {
            "mean": mean, "history": [mean * 2], "count": torch.tensor(1 / 7)
        }
        other, copy, its = made()
        text, tensors = state.save()
        copy.take_rest(text, [one.clone() for one in tensors], b"{}")
        self.assertEqual(copy.checksums()[1], state.checksums()[1])
        self.assertEqual(its.state[other.weight]["mean"].dtype, torch.float32)
        self.assertNotIn(other.bias, its.state)

    def test_what_comes_after_a_step_may_differ_and_is_taken_over(self):
        model, state, optimizer, scheduler = self.made(torch.optim.Adam)
        self.train(model, optimizer, scheduler)
        text, tensors = state.save()
        before, counter = state.checksums(), state.save_counter()
        tensors = [one.clone() for one in tensors]
        scheduler.step()
        state.counter["rows"] = 1
        after = state.checksums()
        self.assertEqual(after[:2], before[:2])
        self.assertNotEqual(after[2], before[2])
        state.take_rest(text, tensors, counter)
        self.assertEqual(state.checksums(), before)
        self.train(model, optimizer, scheduler)
        self.assertNotEqual(state.checksums()[1], before[1])

    def test_a_window_is_undone_and_what_is_between_windows_is_not(self):
        model, state, *others = self.made(torch.optim.SGD)
        counter = state.counter
        state.counter["rows"] = 3
        state.roll_back()
        self.assertEqual(counter["rows"], 3)
        state.keep(1)
        before = [one.clone() for one in model.buffers()]
        state.begin()
        model(torch.randn(5, 3)).sum().backward()
        counter["rows"] += 4
        counter["new"] = 1
        state.roll_back()
        self.assertEqual(dict(counter), {"rows": 3})
        self.assertIs(counter, state.counter)
        for one, other in zip(model.buffers(), before):
            self.assertTrue(torch.equal(one, other))
        self.assertTrue(all(one.grad is None for one in model.parameters()))

    def test_what_cannot_be_copied_is_named(self):
        model, state, optimizer, _ = self.made(torch.optim.SGD)
        optimizer.param_groups[0]["mine"] = object()
        with self.assertRaises(coxswain.InvalidArgument) as raised:
            state.save()
        self.assertIn("/param_groups/0/mine", str(raised.exception))
        with self.assertRaises(coxswain.InvalidArgument) as raised:
            state.counter["rows"] = 0.5
        self.assertIn("'rows' is 0.5", str(raised.exception))
        # At the end of a step, and not when another worker comes.
        state.counter.update(rows=0.5)
        with self.assertRaises(coxswain.InvalidArgument):
            state.keep(1)

    def test_a_counter_may_be_an_integer_of_another_library(self):
        _, state, *_ = self.made(torch.optim.SGD)
        state.counter["rows"] += torch.tensor(4)
        state.counter["rows"] += numpy.int64(2)
        state.keep(1)
        self.assertEqual(state.save_counter(), b'{"rows": 6}')

    def test_a_parameter_that_is_frozen_is_so_on_a_newcomer(self):
        model, state, *_ = self.made(torch.optim.SGD)
        for parameter in model[1].parameters():
            parameter.requires_grad_(False)
        other, copy, *_ = self.made(torch.optim.SGD)
        self.assertNotEqual(copy.checksums()[2], state.checksums()[2])
        text, tensors = state.save()
        copy.take_rest(text, tensors, b"{}")
        self.assertEqual(copy.checksums(), state.checksums())
        self.assertEqual(
            [one.requires_grad for one in other.parameters()],
            [True, True, False, False],
        )

    def test_what_cannot_be_taken_over_is_data_loss(self):
        model, state, *_ = self.made(torch.optim.SGD)
        broken = types.SimpleNamespace(state_dict=dict, load_state_dict=None)
        state._objects["broken"] = broken
        with self.assertRaises(coxswain.Error) as raised:
            _recovery._copy_loose(Alone(), state, 0, [0])
        self.assertEqual(raised.exception.code, coxswain.Code.DATA_LOSS)
        self.assertIn("cannot be taken over", str(raised.exception))
        self.assertFalse(state.whole)

    def test_bytes_that_are_no_state(self):
        _, state, *_ = self.made(torch.optim.SGD)
        for text in (
            b"", b"[]", b"\xff", b"{}", b'{"tensors": 5}',
            b'{"tensors": [5]}', b'{"tensors": ["Nothing [1]"]}',
            b'{"tensors": ["Float [-1]"]}', b'{"tensors": ["Float 1"]}',
            b'{"tensors": ["Float [4294967296, 4294967296]"]}',
            b'{"tensors": ["Float [%d]"]}' % 2**70,
        ):
            with self.assertRaises(coxswain.Error) as raised:
                tensors_of(text)
            self.assertEqual(raised.exception.code, coxswain.Code.DATA_LOSS)
        for text in (
            b"{}", b'{"objects": {"optimizer": ["tensor", 0]}}',
            b'{"objects": {"optimizer": ["none", 0]}}', b'{"objects": []}',
        ):
            with self.assertRaises(coxswain.Error):
                state.take(1, state.parameters(), [], text, [], b"{}")
        self.assertFalse(state.whole)


class DrainTest(unittest.TestCase):
    def test_a_sigterm_that_comes_twice_at_once_drains(self):
        heard = []
        handler = lambda *unused: heard.append(1)  # noqa: E731
        before = signal.signal(signal.SIGTERM, handler)
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        drain = _drain.Drain()
        self.assertFalse(drain.requested)
        with drain.by_sigterm():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            self.assertEqual((drain.requested, heard), (True, []))
            drain._signal._came_at -= 60
            os.kill(os.getpid(), signal.SIGTERM)
            self.assertEqual(heard, [1])
        self.assertIs(signal.getsignal(signal.SIGTERM), handler)

    def test_a_forked_process_is_ended_by_it(self):
        begun, begins = os.pipe()
        with _drain.Drain().by_sigterm():
            child = os.fork()
            if child == 0:
                # Python forgets signals that come while it forks.
                os.write(begins, b"x")
                while True:
                    # A signal just before it does not end a wait.
                    select.select([], [], [], 0.05)
            os.read(begun, 1)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
        os.close(begun)
        os.close(begins)
        self.assertEqual(os.WTERMSIG(status), signal.SIGTERM)


class ArgumentsTest(unittest.TestCase):
    def test_checkpoints_are_refused(self):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        for name in (
            "checkpoint", "checkpoint_own", "checkpoint_own_errors",
            "stop_on_sigterm",
        ):
            with self.assertRaises(coxswain.InvalidArgument) as raised:
                coxswain.torch.elastic(
                    model, optimizer, print, follow={name: {}}
                )
            self.assertIn(name + ", and elastic saves", str(raised.exception))

    def test_a_checkpoint_that_is_asked_for_is_warned_of_once(self):
        with self.assertLogs("coxswain.torch", "WARNING") as logs:
            _elastic._warn_of_checkpoint("an operator asked for it")
            _elastic._warn_of_checkpoint("an operator asked for it")
        self.assertEqual(len(logs.output), 1)
        self.assertIn("an operator asked for it", logs.output[0])


if __name__ == "__main__":
    unittest.main()
