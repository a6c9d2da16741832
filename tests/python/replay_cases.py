"""What elastic_state_test runs of replays in the Python that has torch: the
rules, what a rank keeps, and what recovery does with it."""

import dataclasses
import functools
import unittest
import unittest.mock

import torch

import coxswain
from catch_up_cases import Ranks as Sessions
from coxswain.torch import _copies, _follow, _recovery, _replay
from coxswain.torch._elastic_state import State
from coxswain.torch._replay import Replay
from coxswain.torch._replay_plan import (
    COUNT, CopyFacts, Dispute, ReplayFacts, Version, plan_replay, wrong_in,
)

LINEAGE, GOOD, BAD = 7, 100, 200


def copy_of(step, parameters, **more):
    return CopyFacts(1, 0, LINEAGE, 4, step, parameters)._replace(**more)


class Ranks:
    """Ranks that have trained in generation 4 up to step 12, and hold these
    bits."""

    def __init__(self, *bits):
        self.facts = [
            _recovery._Facts(
                has_state=1, lineage=LINEAGE, recovered=4, trained=4, step=12,
                layout=1, parameters=one, rest=0, loose=0,
            )
            for one in bits
        ]
        self.replays = [
            ReplayFacts(
                known=copy_of(8, 80, confirmed=1), waiting=copy_of(12, one)
            )
            for one in bits
        ]

    def change(self, rank, **given):
        self.facts[rank] = dataclasses.replace(self.facts[rank], **given)

    def note(self, rank, **given):
        self.replays[rank] = self.replays[rank]._replace(**given)

    def disputed(self):
        source, damaged = _recovery._majority(
            self.facts, _recovery._source(self.facts)
        )
        in_step = _recovery._in_step(self.facts, source, damaged)
        differ = _recovery._differ(self.facts, source, in_step)
        return in_step if differ else []

    def plan(self):
        return plan_replay(
            self.facts, self.disputed(), self.replays, 3,
            coxswain.errors.data_loss("they differ"),
        )


def again(*bits):
    """Ranks that had GOOD and BAD at step 12, and have come there again."""
    ranks = Ranks(*bits)
    for rank, had in enumerate((GOOD, BAD)):
        ranks.change(rank, trained=5, recovered=5)
        ranks.note(
            rank, generation=5, step=12, from_step=8, had=(had, 0), replays=1
        )
    return ranks


class PlanTest(unittest.TestCase):
    def assert_lost(self, ranks, *texts):
        with self.assertRaises(coxswain.Error) as raised:
            ranks.plan()
        self.assertEqual(raised.exception.code, coxswain.Code.DATA_LOSS)
        for text in texts:
            self.assertIn(text, str(raised.exception))

    def test_all_go_back_to_the_last_step_that_was_confirmed(self):
        plan = Ranks(GOOD, BAD).plan()
        self.assertEqual(plan.dispute.source, Version(LINEAGE, 4, 8))
        self.assertEqual(plan.dispute.step, 12)
        self.assertEqual(plan.dispute.replays, 1)
        self.assertEqual(plan.dispute.ranks, [0, 1])
        self.assertEqual(plan.dispute.had, [(GOOD, 0), (BAD, 0)])
        self.assertEqual((plan.goes_back, plan.drops), ([0, 1], []))
        self.assertIn(
            "ranks 0, 1 had different bits after the same step 12", plan.warning
        )
        self.assertIn("go back to step 8", plan.warning)

    def test_a_majority_is_no_dispute(self):
        for bits, disputed in (
            ((GOOD, BAD, GOOD), []), ((GOOD, GOOD), []),
            ((GOOD, BAD, 3), [0, 1, 2]),
            ((GOOD, BAD, BAD, GOOD), [0, 1, 2, 3]),
        ):
            self.assertEqual(Ranks(*bits).disputed(), disputed)

    def test_a_rank_whose_copy_is_damaged_takes_over_anothers(self):
        ranks = Ranks(GOOD, BAD)
        ranks.note(0, known=CopyFacts())
        plan = ranks.plan()
        self.assertEqual(plan.dispute.source.step, 8)
        self.assertEqual((plan.goes_back, plan.drops), ([1], [0]))

    def test_copies_of_no_use(self):
        for known in (
            CopyFacts(),  # none
            copy_of(8, 81, confirmed=1),  # other bits than the other's
        ):
            ranks = Ranks(GOOD, BAD)
            if not known.intact:
                ranks.note(0, known=known)
            ranks.note(1, known=known)
            self.assert_lost(ranks, "they differ")
        ranks = Ranks(GOOD, BAD)
        for rank in range(2):
            ranks.note(rank, known=copy_of(8, 80, confirmed=1, lineage=8))
        self.assert_lost(ranks, "they differ")

    def test_a_copy_that_one_rank_knows_is_confirmed_for_all(self):
        """The decision on step 10 has reached rank 1 alone."""
        ranks = Ranks(GOOD, BAD)
        ranks.note(0, waiting=copy_of(10, 90))
        ranks.note(1, known=copy_of(10, 90, confirmed=1))
        plan = ranks.plan()
        self.assertEqual(plan.dispute.source.step, 10)
        self.assertEqual(plan.goes_back, [0, 1])

    def test_a_copy_that_no_rank_knows_counts_where_all_have_the_same(self):
        """Rank 1's bit has changed after it had copied the state."""
        ranks = Ranks(GOOD, BAD)
        ranks.note(1, waiting=copy_of(12, GOOD))
        self.assertEqual(ranks.plan().dispute.source.step, 12)
        ranks.note(1, waiting=CopyFacts())
        self.assertEqual(ranks.plan().dispute.source.step, 8)

    def test_where_the_rest_differs_only_confirmed_copies_count(self):
        ranks = Ranks(GOOD, GOOD)
        ranks.change(1, rest=1)
        self.assertEqual(ranks.plan().dispute.source.step, 8)

    def test_a_rank_that_is_behind_goes_back_too(self):
        ranks = Ranks(GOOD, BAD, GOOD)
        ranks.change(2, step=11)
        plan = ranks.plan()
        self.assertEqual(plan.dispute.ranks, [0, 1])
        self.assertEqual(plan.goes_back, [0, 1, 2])
        ranks.replays[2] = ReplayFacts()
        plan = ranks.plan()
        self.assertEqual((plan.goes_back, plan.drops), ([0, 1], [2]))

    def test_what_a_rank_has_again_after_a_replay_is_reported(self):
        self.assert_lost(
            again(GOOD, BAD),
            "ranks 0, 1 hold different bits after the same step 12",
            "the steps from 8 on were replayed", "each had the bits again",
            "a checkpoint of step 8 or before",
        )
        self.assert_lost(
            again(GOOD, 3), "rank 0 had the same bits again, and rank 1 others"
        )
        self.assert_lost(again(3, 4), "do not give the same bits twice")

    def test_another_step_than_the_one_that_was_replayed_is_replayed(self):
        ranks = again(GOOD, BAD)
        for rank in range(2):
            ranks.change(rank, step=11)
        self.assertEqual(ranks.plan().dispute.replays, 2)
        for rank in range(2):
            ranks.note(rank, replays=3)
        self.assert_lost(ranks, "after 3 replays in a row")

    def test_the_rank_whose_bits_are_others_was_wrong(self):
        def wrong(now, *had):
            return wrong_in(
                Dispute(12, [0, 1], had, Version(), 1, now=now)
            )

        had = (GOOD, 1), (BAD, 1)
        self.assertEqual(wrong((GOOD, 2), *had), [1])
        self.assertEqual(wrong((BAD, 2), *had), [0])
        self.assertEqual(wrong((3, 1), *had), [])
        self.assertEqual(wrong((GOOD, 2), (GOOD, 1), (GOOD, 2)), [0])

    def test_facts_travel_as_numbers(self):
        facts = again(GOOD, BAD).replays[1]
        self.assertEqual(len(facts.numbers()), COUNT)
        self.assertEqual(ReplayFacts.of_numbers(facts.numbers()), facts)


class Rank:
    """A model, of whose steps each gives other bits, and its replay."""

    def __init__(self, mode="two_ranks", kind=torch.optim.Adam):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)
        )
        self.optimizer = kind(self.model.parameters(), lr=0.1)
        self.state = State(self.model, {"optimizer": self.optimizer}, 0, {})
        self.replay = Replay(mode)
        self.standing = _recovery.Standing(
            lineage=LINEAGE, recovered=4, trained=3, replay=self.replay
        )
        self.results = []

    def begin(self, number=4, world_size=2):
        """A generation begins."""
        return self.replay.begin(
            number, world_size,
            Version(LINEAGE, self.standing.trained, self.state.step),
        )

    def before_step(self, every=4):
        self.replay.before_step(every, self.state, lambda: b"error")

    def step(self):
        self.state.begin()
        generator = torch.Generator().manual_seed(self.state.step)
        x = torch.randn(5, 3, generator=generator)
        self.model(x).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.counter["rows"] += 5
        self.state.keep(self.state.step + 1)
        result = self.replay.after_step(self.state.step)
        if result is not None:
            self.results.append(result)

    def train(self, step):
        """Steps to before a step."""
        while True:
            self.before_step()
            if self.state.step >= step:
                return
            self.step()

    def flip(self):
        bits = self.model[0].weight.detach().view(torch.int32)
        bits[0, 0] ^= 1 << 20

    def all_of(self):
        return (
            self.state.step, dict(self.state.counter), self.state.checksums(),
            [one.tolist() for one in self.model.buffers()],
        )


class ReplayTest(unittest.TestCase):
    def setUp(self):
        self.rank = Rank()
        self.replay = self.rank.replay
        self.rank.begin()

    def facts(self):
        return self.replay.facts()

    def assert_no_copies(self):
        self.assertFalse(self.facts().known.intact)
        self.assertFalse(self.facts().waiting.intact)

    def go_back(self):
        """Both ranks have come to step 12 and differ there, as rank 1 was
        wrong; the generation ends."""
        self.rank.train(12)
        parameters, rest, _ = self.rank.state.checksums()
        source = self.facts().known.version()
        dispute = Dispute(
            12, [0, 1], [(parameters, rest), (parameters ^ 1, rest)], source, 1
        )
        self.replay.note_dispute(dispute, 0, 5)
        self.replay.find(source).restore(self.rank.state)
        self.rank.standing.trained = 5

    def test_the_state_of_the_last_step_that_was_confirmed_is_kept(self):
        self.rank.train(0)
        known = self.facts().known
        self.assertEqual((known.step, known.confirmed), (0, 1))
        self.assertEqual(known.version(), Version(LINEAGE, 3, 0))
        self.assertFalse(self.facts().waiting.intact)
        self.rank.train(8)
        before = self.rank.all_of()
        facts = self.facts()
        self.assertEqual(facts.known.version(), Version(LINEAGE, 4, 4))
        self.assertEqual((facts.waiting.step, facts.waiting.confirmed), (8, 0))
        self.rank.train(11)
        self.assertEqual(self.facts().known.step, 8)
        later = self.rank.all_of()
        kept = self.replay.find(Version(LINEAGE, 4, 8))
        self.assertEqual((kept.hook, kept.hook_world), (b"error", 2))
        self.assertIsNone(self.replay.find(Version(LINEAGE, 4, 4)))
        # As often as is needed: what is taken again leaves the copy as it is.
        for _ in range(2):
            kept.restore(self.rank.state)
            self.assertEqual(self.rank.all_of(), before)
            self.rank.train(11)
            self.assertEqual(self.rank.all_of(), later)

    def test_nothing_is_kept_where_nothing_is_compared(self):
        self.rank.train(5)
        self.rank.before_step(every=0)
        self.assert_no_copies()
        for mode, size, keeps in (
            ("never", 2, False), ("two_ranks", 3, False), ("always", 1, False),
            ("always", 3, True),
        ):
            rank = Rank(mode)
            rank.begin(world_size=size)
            rank.train(1)
            self.assertEqual(bool(rank.replay.facts().known.intact), keeps)
        with self.assertRaisesRegex(coxswain.InvalidArgument, "'sometimes'"):
            Replay("sometimes")

    def test_a_bit_that_changes_in_the_copy_is_found(self):
        self.rank.train(4)
        version = Version(LINEAGE, 3, 0)
        kept = self.replay.find(version)
        with torch.no_grad():
            for one in (kept._parameters[0], kept._buffers[0]):
                before = one.clone()
                one.view(-1)[0] += 1
                self.assertFalse(self.facts().known.intact)
                self.assertIsNone(self.replay.find(version))
                one.copy_(before)
                self.assertTrue(self.facts().known.intact)
        kept.hook = b"errors"
        self.assertFalse(self.facts().known.intact)

    def test_a_state_that_cannot_be_saved_leaves_it_without_copies(self):
        self.rank.train(5)
        with unittest.mock.patch.object(
            self.rank.state, "save", side_effect=MemoryError("no memory")
        ), self.assertLogs(_replay._log, "WARNING") as logged:
            self.rank.train(9)
        self.assertIn("state_not_kept: generation 4, step 8", logged.output[0])
        self.assert_no_copies()

    def test_the_rank_is_named_once_all_hold_the_same_bits_again(self):
        self.go_back()
        self.assertEqual(self.rank.begin(5), [])
        self.rank.train(12)
        self.assertEqual(self.rank.results, [])
        self.assertEqual(
            (self.facts().generation, self.facts().replays), (5, 1)
        )
        self.rank.train(20)
        self.assertEqual(self.rank.results, [_replay.Result(12, 8, [1])])
        self.assertEqual((self.facts().step, self.facts().replays), (0, 0))

    def test_it_gives_up_when_the_generation_ends_before(self):
        self.go_back()
        self.rank.begin(5)
        self.rank.train(10)
        why, = self.rank.begin(6)
        self.assertIn("before the ranks were at step 12 again", why)
        # It counts as one until the ranks are past that step.
        self.rank.train(12)
        self.assertEqual(self.facts().replays, 1)
        self.rank.train(20)
        self.assertEqual((self.rank.results, self.facts().replays), ([], 0))

    def test_only_what_was_compared_is_kept_as_confirmed(self):
        self.rank.step()
        self.rank.train(3)
        self.assert_no_copies()
        self.rank.train(4)
        self.assertFalse(self.facts().known.intact)
        self.assertTrue(self.facts().waiting.intact)

    def test_no_rank_is_named_where_the_members_were_others(self):
        """The steps are divided anew, and give other bits."""
        self.rank.train(12)
        self.go_back()
        self.replay._dispute.had.append((1, 1))  # of a third rank
        dispute = self.replay._dispute
        self.replay.note_dispute(dispute, 0, 5)
        self.rank.begin(5)
        self.rank.train(20)
        self.assertEqual(self.rank.results, [_replay.Result(12, 8, [])])

    def test_what_is_logged_names_the_host(self):
        session = unittest.mock.Mock(generation=5)
        session.member.return_value = coxswain.Member(1, 1, "a", 3, "host-a", "")
        with self.assertLogs(_replay._log, "WARNING") as logged:
            _replay.log(session, _replay.Result(12, 8, [1]))
            _replay.log(session, _replay.Result(12, 8, []))
        self.assertIn("replay_named: generation 5, rank 1 (a/3 on host-a), "
                      "step 12", logged.output[0])
        self.assertIn("replay_named_none: generation 5, step 12",
                      logged.output[1])


class ComparedTest(unittest.TestCase):
    def test_nothing_is_compared_without_a_coordinator_that_decides(self):
        plan = unittest.mock.Mock(enforced=True, words={"checksum_every": "4"})
        self.assertEqual(_follow.checked_every(plan), 4)
        plan.enforced = False
        self.assertEqual(_follow.checked_every(plan), 0)
        plan.enforced, plan.words = True, {}
        self.assertEqual(_follow.checked_every(plan), 0)

    def test_checksums_are_of_every_step_that_the_plan_names(self):
        model = torch.nn.Linear(2, 1)
        wrapper = unittest.mock.Mock(
            module=model, parameters_to_ignore={"bias"}
        )
        wrapper._join_config.enable = False
        run = unittest.mock.Mock(_model=wrapper, _micro=0)
        plan = unittest.mock.Mock(enforced=True, words={"checksum_every": "4"})

        def checksum(step, micro=0):
            run.schedule.step, run._micro = step, micro
            return _follow.Run._checksum(run, plan)

        self.assertEqual(checksum(8), _copies.checksum([model.weight]))
        self.assertIsNone(checksum(9))
        self.assertIsNone(checksum(8, micro=1))  # with sync_each_batch
        wrapper._join_config.enable = True
        self.assertIsNone(checksum(8))


class RecoverTest(unittest.TestCase):
    """Two ranks, of which the second was wrong after step 9."""

    def setUp(self):
        self.ranks = [Rank(), Rank()]
        for i, rank in enumerate(self.ranks):
            rank.begin()
            rank.train(8)
            self.good = rank.all_of()
            rank.train(9)
            if i == 1:
                rank.flip()
            rank.train(12)
            rank.standing.trained = 4

    def recover(self):
        return Sessions(2).run(*[
            functools.partial(
                lambda rank, session: _recovery.recover(
                    session, rank.state, rank.standing
                ),
                rank,
            )
            for rank in self.ranks
        ])

    def test_both_go_back_to_their_copies(self):
        self.assertNotEqual(
            self.ranks[0].state.checksums(), self.ranks[1].state.checksums()
        )
        for found in self.recover():
            self.assertEqual((found.step, found.copied), (8, False), found)
            self.assertIn("all go back to step 8", found.warnings[0])
        for rank in self.ranks:
            self.assertEqual(rank.all_of(), self.good)
            standing = rank.standing
            self.assertEqual((standing.hook, standing.hook_world), (b"error", 2))
            self.assertTrue(standing.took_part)
            rank.train(16)
            rank.train(17)
            self.assertEqual(rank.results, [_replay.Result(12, 8, [1])])

    def test_one_without_a_copy_takes_over_that_of_the_other(self):
        self.ranks[0].standing.replay = self.ranks[0].replay = Replay()
        first, second = self.recover()
        self.assertEqual((first.copied, second.copied), (True, False))
        self.assertEqual(self.ranks[0].standing.hook, b"")
        for rank in self.ranks:
            self.assertEqual(rank.all_of(), self.good)

    def test_without_copies_the_job_ends(self):
        for rank in self.ranks:
            rank.standing.replay = Replay()
        # Neither leaves before the other one has found the same.
        for error in self.recover():
            self.assertIsInstance(error, coxswain.Error)
            self.assertEqual(error.code, coxswain.Code.DATA_LOSS)
            self.assertIn("start the job again from a checkpoint", str(error))


if __name__ == "__main__":
    unittest.main()
