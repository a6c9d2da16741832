// Hooks whose functions a program passes, on ranks that are threads.

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/capi/loaded_library.h"

namespace coxswain::capi_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kElements = 6;

// The average, and what it remembers: a number of each rank, and the number of
// steps. `mode` is what goes wrong, on rank 1 alone.
struct Mine {
  std::string mode;
  double factor = 1;
  std::vector<float> error = std::vector<float>(kElements);
  std::vector<float> staged;
  int32_t steps = 0;
  std::vector<cx_state_tensor> saved;
};

struct OnItsWay {
  Mine* hook;
  cx_bucket bucket;
  int rank;
  int ranks;
  int calls = 0;
};

int made = 0, destroyed = 0, ended = 0;

cx_code Make(void* data, const char* spec, const cx_setting* options,
             size_t count, void** hook) {
  EXPECT_STREQ(static_cast<const char*>(data), "data");
  EXPECT_THAT(spec, HasSubstr("mine"));
  EXPECT_EQ(count, 2u);
  auto mine = std::make_unique<Mine>();
  for (size_t i = 0; i < count; ++i) {
    if (std::string(options[i].name) == "mode") mine->mode = options[i].value;
    if (std::string(options[i].name) == "factor") {
      mine->factor = std::stod(options[i].value);
    }
  }
  if (mine->factor < 0) {
    Library().cx_hook_fail("factor is below 0");
    return CX_INVALID_ARGUMENT;
  }
  __atomic_add_fetch(&made, 1, __ATOMIC_SEQ_CST);
  *hook = mine.release();
  return CX_OK;
}

cx_code Configure(void*, const cx_parameter* parameters, size_t count,
                  int32_t) {
  EXPECT_EQ(count, 1u);
  EXPECT_STREQ(parameters[0].name, "a");
  EXPECT_EQ(parameters[0].shape[0] * parameters[0].shape[1], kElements);
  return CX_OK;
}

cx_code Begin(void* hook, const cx_bucket* bucket, int32_t rank, int32_t ranks,
              void** exchange) {
  EXPECT_EQ(bucket->slot_count, 1u);
  *exchange = new OnItsWay{static_cast<Mine*>(hook), *bucket, rank, ranks};
  return CX_OK;
}

cx_code Advance(void* exchange, cx_collective* next) {
  auto& it = *static_cast<OnItsWay*>(exchange);
  const std::string mode = it.rank == 1 ? it.hook->mode : "mean";
  auto* const data = static_cast<float*>(it.bucket.data);
  ++it.calls;
  if (mode == "fails") {
    Library().cx_hook_fail("no luck");
    return CX_OUT_OF_RANGE;
  }
  if (mode == "throws") throw std::runtime_error("thrown");
  next->kind = CX_ALL_REDUCE;
  next->dtype = CX_FLOAT32;
  next->data = data;
  next->count = kElements;
  if (mode == "short") next->count = kElements - 1;
  if (mode == "nonsense") next->kind = 77;
  const bool more = mode == "more" && it.calls < 3;
  if (it.calls == 1 || more || it.hook->mode == "endless") return CX_OK;
  next->kind = CX_NO_COLLECTIVE;
  it.hook->staged.assign(kElements, static_cast<float>(it.rank + 1));
  for (int64_t i = 0; i < kElements; ++i) {
    data[i] *= static_cast<float>(it.hook->factor / it.ranks);
  }
  return CX_OK;
}

void End(void* exchange) {
  __atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
  delete static_cast<OnItsWay*>(exchange);
}

cx_code Commit(void* hook) {
  Mine& mine = *static_cast<Mine*>(hook);
  for (size_t i = 0; i < mine.error.size(); ++i) {
    mine.error[i] += mine.staged[i];
  }
  ++mine.steps;
  return CX_OK;
}

void Rollback(void* hook) { static_cast<Mine*>(hook)->staged.clear(); }

cx_code Save(void* hook, const cx_state_tensor** tensors, size_t* count) {
  static const int64_t shape[] = {2, 3};
  Mine& mine = *static_cast<Mine*>(hook);
  mine.saved = {
      {"error", "a", shape, 2, CX_FLOAT32, mine.error.data(), CX_STATE_OWN},
      {"steps", "", nullptr, 0, CX_INT32, &mine.steps, 0}};
  *tensors = mine.saved.data();
  *count = mine.saved.size();
  return CX_OK;
}

cx_code Load(void* hook, const cx_state_tensor* tensors, size_t count) {
  Mine& mine = *static_cast<Mine*>(hook);
  for (size_t i = 0; i < count; ++i) {
    if (std::string(tensors[i].kind) == "steps") {
      std::memcpy(&mine.steps, tensors[i].data, sizeof(mine.steps));
    } else {
      EXPECT_EQ(tensors[i].flags, uint64_t{CX_STATE_OWN});
      std::memcpy(mine.error.data(), tensors[i].data,
                  kElements * sizeof(float));
    }
  }
  return CX_OK;
}

void Destroy(void* hook) {
  __atomic_add_fetch(&destroyed, 1, __ATOMIC_SEQ_CST);
  delete static_cast<Mine*>(hook);
}

cx_code Register(const char* name) {
  static char data[] = "data";
  const cx_hook_option options[] = {
      {"mode", "mean", "what goes wrong", CX_OPTION_TEXT, 0},
      {"factor", "1", "of the average", CX_OPTION_FLOAT, 0}};
  auto hook = Init<cx_hook>();
  hook.name = name;
  hook.help = "an average";
  hook.version = "1";
  hook.options = options;
  hook.option_count = 2;
  hook.data = data;
  hook.make = Make;
  hook.configure = Configure;
  hook.begin = Begin;
  hook.advance = Advance;
  hook.end = End;
  hook.commit = Commit;
  hook.rollback = Rollback;
  hook.save = Save;
  hook.load = Load;
  hook.destroy = Destroy;
  return Library().cx_hook_register(&hook);
}

class CapiOwnHookTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(Register("mine"), CX_OK) << Message();
  }

  static cx_code Open(cx_session session) {
    const int64_t shape[] = {2, 3};
    const cx_parameter parameter = {"a", shape, 2, CX_FLOAT32};
    return InSlices([&](cx_call* call) {
      return Library().cx_exchange_open(session, nullptr, &parameter, 1, call);
    });
  }

  // Exchanges one bucket of elements that are all the same.
  static cx_code Exchange(cx_session session, int64_t step,
                          std::vector<float>* data) {
    auto ticket = Init<cx_ticket>();
    ticket.step = step;
    ticket.micro_batches = 1;
    EXPECT_EQ(Library().cx_announce(session, &ticket), CX_OK) << Message();
    const cx_slot slot = {0, 0, 0, kElements};
    auto bucket = Init<cx_bucket>();
    bucket.last = 1;
    bucket.data = data->data();
    bucket.count = kElements;
    bucket.slots = &slot;
    bucket.slot_count = 1;
    EXPECT_EQ(Library().cx_exchange_bucket(session, nullptr, &bucket), CX_OK)
        << Message();
    return InSlices([&](cx_call* call) {
      return Library().cx_exchange_wait(session, nullptr, call);
    });
  }

  static float Step(cx_session session, int64_t step, int rank,
                    bool refuse = false) {
    std::vector<float> data(kElements, static_cast<float>(2 * rank));
    EXPECT_EQ(Exchange(session, step, &data), CX_OK) << Message();
    auto decision = Init<cx_decision>();
    auto vote = Init<cx_vote>();
    vote.refuse = refuse ? 1 : 0;
    EXPECT_EQ(Library().cx_decide(session, nullptr, &vote, &decision, nullptr),
              CX_OK)
        << Message();
    EXPECT_THAT(data, Each(data[0]));
    return data[0];
  }

  static std::string State(cx_session session) {
    const void* state = nullptr;
    size_t size = 0;
    EXPECT_EQ(InSlices([&](cx_call* call) {
                return Library().cx_hook_save(session, nullptr, 1, &state,
                                              &size, call);
              }),
              CX_OK)
        << Message();
    return std::string(static_cast<const char*>(state), size);
  }

  // Runs a step in which rank 1 goes wrong. Returns the errors, by rank: a rank
  // leaves with its own, and where it was rank 1's alone, rank 0's names it.
  static std::vector<std::string> Errors(const std::string& mode) {
    Job job(2, ("hook=mine(mode=" + mode + ")").c_str());
    std::vector<std::string> errors(2);
    job.Each([&](int rank, cx_session session) {
      ASSERT_EQ(Open(session), CX_OK) << Message();
      std::vector<float> data(kElements);
      EXPECT_NE(Exchange(session, 0, &data), CX_OK);
      errors[static_cast<size_t>(rank)] = Message();
      Library().cx_leave(session, Message().c_str(), 1, nullptr);
    });
    return errors;
  }
};

TEST_F(CapiOwnHookTest, SpecsNameItWithItsOptionsAndWrapIt) {
  const char* spec = nullptr;
  ASSERT_EQ(Library().cx_canonical_hook("fp16(mine(factor=0.50))", CX_HOOK_SPEC,
                                        &spec),
            CX_OK)
      << Message();
  EXPECT_STREQ(spec, "fp16(mine(factor=0.5))");
  EXPECT_EQ(Library().cx_canonical_hook("mine(factor=-1)", CX_HOOK_SPEC, &spec),
            CX_INVALID_ARGUMENT);
  EXPECT_THAT(Message(), HasSubstr("factor is below 0"));
  EXPECT_EQ(Library().cx_canonical_hook("mine(rank=1)", CX_HOOK_SPEC, &spec),
            CX_INVALID_ARGUMENT);
  EXPECT_THAT(Message(), HasSubstr("rank"));
  const char* json = nullptr;
  ASSERT_EQ(Library().cx_hooks(&json), CX_OK);
  EXPECT_THAT(json, HasSubstr("\"mine\""));
}

TEST_F(CapiOwnHookTest, AveragesAlsoWhereItIsWrapped) {
  for (const char* plan :
       {"hook=mine", "hook=fp16(mine)", "hook=stats(mine)"}) {
    Job job(2, plan);
    job.Each([](int rank, cx_session session) {
      ASSERT_EQ(Open(session), CX_OK) << Message();
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(Step(session, step, rank), 1);
      }
    });
    job.Leave();
  }
  Job job(2, "hook=mine(factor=3)");
  job.Each([](int rank, cx_session session) {
    ASSERT_EQ(Open(session), CX_OK) << Message();
    EXPECT_EQ(Step(session, 0, rank), 3);
  });
  job.Leave();
}

TEST_F(CapiOwnHookTest, EachHookAndExchangeIsEnded) {
  made = destroyed = 0;
  const int before = ended;
  {
    Job job(1, "hook=mine");
    ASSERT_EQ(Open(job[0]), CX_OK) << Message();
    Step(job[0], 0, 0);
    job.Leave();
  }
  EXPECT_GE(made, 1);
  EXPECT_EQ(made, destroyed);
  EXPECT_EQ(ended, before + 1);
}

TEST_F(CapiOwnHookTest, WhatItRemembersIsSavedAndAMeanWhereRanksDiffer) {
  std::string state;
  {
    Job job(2, "commit_vote=true hook=mine");
    job.Each([&](int rank, cx_session session) {
      ASSERT_EQ(Open(session), CX_OK) << Message();
      Step(session, 0, rank);
      const std::string mine = State(session);
      // What is refused leaves nothing.
      Step(session, 1, rank, /*refuse=*/true);
      EXPECT_EQ(State(session), mine);
      Step(session, 2, rank);
      const std::string later = State(session);
      EXPECT_NE(later, mine);
      if (rank == 0) state = later;
    });
    job.Leave();
  }
  Job job(3, "hook=mine");
  job.Each([&](int, cx_session session) {
    ASSERT_EQ(Open(session), CX_OK) << Message();
    const cx_bytes part = {state.data(), state.size()};
    ASSERT_EQ(Library().cx_hook_load(session, nullptr, &part, 1), CX_OK)
        << Message();
    // The mean of 2 on rank 0 and 4 on rank 1 is that of all three.
    EXPECT_EQ(State(session), state);
  });
  job.Leave();
}

TEST_F(CapiOwnHookTest, AnErrorIsNamedOnAllRanks) {
  std::vector<std::string> errors = Errors("fails");
  EXPECT_EQ(errors[1], "bucket 0: the hook mine(mode=fails): no luck");
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1"), HasSubstr("no luck")));
  errors = Errors("throws");
  EXPECT_THAT(errors[1], AllOf(HasSubstr("`advance`"), HasSubstr("thrown")));
  EXPECT_THAT(errors[0], HasSubstr("thrown"));
  errors = Errors("nonsense");
  EXPECT_THAT(errors[1], HasSubstr("77"));
}

TEST_F(CapiOwnHookTest, RanksThatDoNotDoTheSameAreNamedAndDoNotHang) {
  for (const char* mode : {"short", "more"}) {
    const std::vector<std::string> errors = Errors(mode);
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("bucket 0"), HasSubstr("rank 1"),
                                   HasSubstr("all-reduce"))))
        << mode;
  }
}

TEST_F(CapiOwnHookTest, AnExchangeThatDoesNotEndIsAnError) {
  Job job(1, "hook=mine(mode=endless)");
  ASSERT_EQ(Open(job[0]), CX_OK) << Message();
  std::vector<float> data(kElements);
  EXPECT_EQ(Exchange(job[0], 0, &data), CX_FAILED_PRECONDITION);
  EXPECT_THAT(Message(), HasSubstr("1000 collectives"));
}

TEST_F(CapiOwnHookTest, WhatMakesNoSenseIsNotRegistered) {
  EXPECT_EQ(Register("mine"), CX_ALREADY_EXISTS);
  EXPECT_EQ(Register("int8"), CX_ALREADY_EXISTS);
  EXPECT_EQ(Register("no name"), CX_INVALID_ARGUMENT);
  auto hook = Init<cx_hook>();
  EXPECT_EQ(Library().cx_hook_register(&hook), CX_INVALID_ARGUMENT);
  EXPECT_THAT(Message(), HasSubstr("name is NULL"));
  hook.name = "other";
  EXPECT_EQ(Library().cx_hook_register(&hook), CX_INVALID_ARGUMENT);
  EXPECT_THAT(Message(), HasSubstr("make is NULL"));
  Job job(1);
  EXPECT_EQ(Register("late"), CX_FAILED_PRECONDITION);
  EXPECT_THAT(Message(), HasSubstr("before joining"));
  job.Leave();
}

}  // namespace
}  // namespace coxswain::capi_test
