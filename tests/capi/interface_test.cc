// What needs one rank at most: the library's form, arguments, structs, joining
// and giving up.

#include <chrono>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "gmock/gmock.h"
#include "tests/capi/loaded_library.h"

namespace coxswain::capi_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const LoadedLibrary& lib = Library();

TEST(CapiLibraryTest, ExportsTheFunctionsOfItsHeaderAndNothingElse) {
  Child nm({"/usr/bin/nm", "-D", "--defined-only", "--format=posix", kLibrary});
  std::set<std::string> names;
  for (std::string line = nm.LineWith(" "); !line.empty();
       line = nm.LineWith(" ")) {
    names.insert(line.substr(0, line.find(' ')));
  }
  EXPECT_EQ(names, LoadedLibrary::Names());
}

TEST(CapiLibraryTest, HasTheVersionOfItsHeader) {
  EXPECT_EQ(lib.cx_abi_version() >> 16, CX_ABI_MAJOR);
  EXPECT_EQ(lib.cx_abi_version() & 0xffff, CX_ABI_MINOR);
  EXPECT_STRNE(lib.cx_version(), "");
}

// Programs are compiled against these.
TEST(CapiLibraryTest, StructsKeepTheirLayout) {
  EXPECT_EQ(sizeof(cx_join_options), 176u);
  EXPECT_EQ(offsetof(cx_join_options, slot), 40u);
  EXPECT_EQ(offsetof(cx_join_options, plan), 128u);
  EXPECT_EQ(sizeof(cx_setting), 16u);
  EXPECT_EQ(sizeof(cx_parameter), 24u);
  EXPECT_EQ(sizeof(cx_session_info), 40u);
  EXPECT_EQ(sizeof(cx_member_info), 48u);
  EXPECT_EQ(sizeof(cx_event), 40u);
  EXPECT_EQ(sizeof(cx_ticket), 112u);
  EXPECT_EQ(sizeof(cx_vote), 24u);
  EXPECT_EQ(sizeof(cx_decision), 72u);
  EXPECT_EQ(sizeof(cx_plan_info), 64u);
  EXPECT_EQ(sizeof(cx_part), 24u);
  EXPECT_EQ(sizeof(cx_taken_step), 56u);
  EXPECT_EQ(sizeof(cx_newcomer_calls), 56u);
  EXPECT_EQ(sizeof(cx_caught_up), 48u);
}

void ExpectInvalid(cx_code code, const std::string& argument) {
  EXPECT_EQ(code, CX_INVALID_ARGUMENT) << argument;
  EXPECT_EQ(lib.cx_last_error_code(), CX_INVALID_ARGUMENT);
  EXPECT_THAT(Message(), HasSubstr(argument));
}

TEST(CapiArgumentsTest, AHandleThatIsNotOpenIsAnError) {
  auto info = Init<cx_session_info>();
  auto ticket = Init<cx_ticket>();
  auto decision = Init<cx_decision>();
  auto event = Init<cx_event>();
  auto member = Init<cx_member_info>();
  auto plan = Init<cx_plan_info>();
  const void* value = nullptr;
  size_t size = 0;
  float data = 0;
  for (const cx_session none : {cx_session{0}, cx_session{12345}}) {
    const std::string words =
        "cx_session " + std::to_string(none) + " is not open";
    ExpectInvalid(lib.cx_configure(none, nullptr, 0), words);
    ExpectInvalid(lib.cx_leave(none, "", 0, nullptr), words);
    ExpectInvalid(lib.cx_close(none), words);
    ExpectInvalid(lib.cx_info(none, &info), words);
    ExpectInvalid(lib.cx_member(none, 0, &member, nullptr), words);
    ExpectInvalid(lib.cx_status(none), words);
    ExpectInvalid(lib.cx_next_event(none, 0, &event, nullptr), words);
    ExpectInvalid(lib.cx_report_progress(none, 1), words);
    ExpectInvalid(lib.cx_report_wait(none, 1), words);
    ExpectInvalid(lib.cx_note_micro_batch(none), words);
    ExpectInvalid(lib.cx_barrier(none, "a", 1, nullptr), words);
    ExpectInvalid(lib.cx_store_set(none, "a", "b", 1, nullptr), words);
    ExpectInvalid(lib.cx_store_get(none, "a", 0, &value, &size, nullptr),
                  words);
    ExpectInvalid(lib.cx_store_wait(none, nullptr, 0, 0, nullptr), words);
    ExpectInvalid(lib.cx_store_add(none, "a", 1, nullptr, nullptr), words);
    ExpectInvalid(lib.cx_store_compare_set(none, "a", "", 0, "", 0, nullptr,
                                           nullptr, nullptr, nullptr),
                  words);
    ExpectInvalid(lib.cx_store_delete(none, "a", nullptr, nullptr), words);
    ExpectInvalid(lib.cx_store_count_keys(none, "", nullptr, nullptr), words);
    ExpectInvalid(lib.cx_announce(none, &ticket), words);
    ExpectInvalid(lib.cx_grant(none, nullptr, nullptr), words);
    ExpectInvalid(lib.cx_decide(none, nullptr, nullptr, &decision, nullptr),
                  words);
    ExpectInvalid(lib.cx_request(none, CX_REQUEST_STOP, ""), words);
    ExpectInvalid(lib.cx_plan(none, &plan), words);
    ExpectInvalid(
        lib.cx_all_reduce(none, &data, 1, CX_FLOAT32, CX_SUM, nullptr), words);
    ExpectInvalid(lib.cx_broadcast(none, &data, 1, CX_FLOAT32, 0, nullptr),
                  words);
    ExpectInvalid(
        lib.cx_all_gather(none, &data, 1, &data, 1, CX_FLOAT32, nullptr),
        words);
    ExpectInvalid(lib.cx_source_open(none, 1), words);
    int32_t wants = 0;
    ExpectInvalid(lib.cx_source_wants(none, &wants), words);
    ExpectInvalid(lib.cx_source_averages(none, nullptr, 0), words);
    auto step = Init<cx_taken_step>();
    ExpectInvalid(lib.cx_source_step(none, &step), words);
    ExpectInvalid(lib.cx_source_drop(none), words);
    auto caught_up = Init<cx_caught_up>();
    ExpectInvalid(lib.cx_newcomer_finish(none, 0, &caught_up, nullptr),
                  "cx_newcomer " + std::to_string(none) + " is not open");
    cx_call call = none;
    ExpectInvalid(lib.cx_wait(&call), "cx_call");
    ExpectInvalid(lib.cx_cancel(&call), "cx_call");
  }
}

// Functions of a newcomer, none of which is to be called.
cx_newcomer_calls CallsOf(int* called) {
  auto calls = Init<cx_newcomer_calls>();
  calls.data = called;
  const auto parts = [](void* data, const void*, size_t, const cx_part**,
                        size_t*) -> cx_code {
    ++*static_cast<int*>(data);
    return CX_OK;
  };
  calls.begin = [](void* data, const void*, size_t) -> cx_code {
    ++*static_cast<int*>(data);
    return CX_OK;
  };
  calls.state = parts;
  calls.averages = parts;
  calls.step = [](void* data, const void*, size_t, int32_t) -> cx_code {
    ++*static_cast<int*>(data);
    return CX_OK;
  };
  calls.undo = [](void* data) -> cx_code {
    ++*static_cast<int*>(data);
    return CX_OK;
  };
  return calls;
}

TEST(CapiNewcomerTest, ThatNoMemberSendsToTakesNothing) {
  int called = 0;
  const cx_newcomer_calls calls = CallsOf(&called);
  cx_join_options options = OptionsOf("newcomer", 0, 1);
  cx_newcomer newcomer = 0;
  ASSERT_EQ(lib.cx_newcomer_listen(&options, &calls, &newcomer), CX_OK)
      << Message();
  options.newcomer = newcomer;
  cx_session session = 0;
  ASSERT_EQ(lib.cx_join(&options, &session, nullptr), CX_OK) << Message();
  auto caught_up = Init<cx_caught_up>();
  EXPECT_EQ(InSlices([&](cx_call* call) {
              return lib.cx_newcomer_finish(newcomer, 30000, &caught_up, call);
            }),
            CX_OK)
      << Message();
  EXPECT_EQ(caught_up.caught_up, 0);
  EXPECT_STREQ(caught_up.damage, "");
  EXPECT_EQ(called, 0);
  ExpectInvalid(lib.cx_newcomer_finish(newcomer, 0, &caught_up, nullptr),
                "is not open");
  options.newcomer = 0;
  ASSERT_EQ(lib.cx_newcomer_listen(&options, &calls, &newcomer), CX_OK)
      << Message();
  ExpectInvalid(lib.cx_newcomer_finish(newcomer, 0, nullptr, nullptr),
                "caught_up is NULL");
  ExpectInvalid(lib.cx_newcomer_finish(newcomer, 0, &caught_up, nullptr),
                "is not open");
  EXPECT_EQ(lib.cx_close(session), CX_OK);
}

TEST(CapiNewcomerTest, IsRefusedWithoutAFunctionOrWhereDataAreEncrypted) {
  int called = 0;
  cx_newcomer_calls calls = CallsOf(&called);
  cx_join_options options = OptionsOf("newcomer", 0, 1);
  cx_newcomer newcomer = 0;
  ExpectInvalid(lib.cx_newcomer_listen(&options, nullptr, &newcomer),
                "calls is NULL");
  ExpectInvalid(lib.cx_newcomer_listen(&options, &calls, nullptr),
                "newcomer is NULL");
  calls.step = nullptr;
  ExpectInvalid(lib.cx_newcomer_listen(&options, &calls, &newcomer),
                "calls.step is NULL");
  options.newcomer = 12345;
  cx_session session = 0;
  ExpectInvalid(lib.cx_join(&options, &session, nullptr),
                "cx_newcomer 12345 is not open");
  const std::string folder = testing::TempDir() + "/certificates";
  Child certificates({kCoxswain, "certs", "init", "--dir", folder});
  ASSERT_EQ(certificates.Wait(), 0);
  const std::string authority = folder + "/ca.crt";
  options = OptionsOf("newcomer", 0, 1);
  options.tls_ca = authority.c_str();
  calls = CallsOf(&called);
  EXPECT_EQ(lib.cx_newcomer_listen(&options, &calls, &newcomer),
            CX_FAILED_PRECONDITION);
  EXPECT_THAT(Message(), HasSubstr("in plain text"));
  EXPECT_EQ(newcomer, 0u);
}

TEST(CapiSourceTest, WantsNothingWithoutNewcomers) {
  const Job job(1);
  int32_t wants = 7;
  EXPECT_EQ(lib.cx_source_wants(job[0], &wants), CX_OK);
  EXPECT_EQ(wants, 0);
  EXPECT_EQ(lib.cx_source_drop(job[0]), CX_OK);
  ASSERT_EQ(lib.cx_source_open(job[0], 5), CX_OK) << Message();
  EXPECT_EQ(lib.cx_source_open(job[0], 5), CX_FAILED_PRECONDITION);
  wants = 7;
  EXPECT_EQ(lib.cx_source_wants(job[0], &wants), CX_OK);
  EXPECT_EQ(wants, 0);
  float data[2] = {1, 2};
  auto part = cx_part{};
  part.data = data;
  part.size = sizeof(data);
  EXPECT_EQ(lib.cx_source_averages(job[0], &part, 1), CX_OK) << Message();
  auto step = Init<cx_taken_step>();
  step.flags = CX_STEP_APPLIED;
  step.state = &part;
  step.state_count = 1;
  EXPECT_EQ(lib.cx_source_step(job[0], &step), CX_OK) << Message();
  step.flags = 4;
  ExpectInvalid(lib.cx_source_step(job[0], &step), "a flag");
  step.flags = 0;
  step.rest_size = 1;
  ExpectInvalid(lib.cx_source_step(job[0], &step), "step.rest is NULL");
  step.rest_size = (size_t{64} << 20) + 1;
  ExpectInvalid(lib.cx_source_step(job[0], &step), "67108864 are sent at most");
  step.rest_size = 0;
  part.data = nullptr;
  ExpectInvalid(lib.cx_source_step(job[0], &step), "step.state[0]");
  ExpectInvalid(lib.cx_source_averages(job[0], nullptr, 1), "averages is NULL");
  ExpectInvalid(lib.cx_source_wants(job[0], nullptr), "wants is NULL");
}

TEST(CapiArgumentsTest, WhatIsMissingOrMakesNoSenseIsNamed) {
  const Job job(1);
  const cx_session session = job[0];
  const void* value = nullptr;
  size_t size = 0;
  float data = 0;
  const char* keys[] = {"a", nullptr};
  const char* spec = nullptr;
  ExpectInvalid(lib.cx_join(nullptr, nullptr, nullptr), "session is NULL");
  ExpectInvalid(lib.cx_info(session, nullptr), "info is NULL");
  ExpectInvalid(lib.cx_member(session, 0, nullptr, nullptr), "member is NULL");
  ExpectInvalid(lib.cx_next_event(session, 0, nullptr, nullptr), "event");
  ExpectInvalid(lib.cx_barrier(session, nullptr, 1, nullptr), "tag is NULL");
  ExpectInvalid(lib.cx_barrier(session, "a", -1, nullptr), "timeout_ms is -1");
  ExpectInvalid(lib.cx_store_set(session, nullptr, "", 0, nullptr), "key is");
  ExpectInvalid(lib.cx_store_set(session, "a", nullptr, 1, nullptr), "value");
  ExpectInvalid(lib.cx_store_get(session, "a", 0, nullptr, &size, nullptr),
                "value is NULL");
  ExpectInvalid(lib.cx_store_get(session, "a", 0, &value, nullptr, nullptr),
                "value_size is NULL");
  ExpectInvalid(lib.cx_store_wait(session, keys, 2, 0, nullptr), "keys[1] is");
  ExpectInvalid(lib.cx_announce(session, nullptr), "ticket is NULL");
  ExpectInvalid(lib.cx_decide(session, nullptr, nullptr, nullptr, nullptr),
                "decision is NULL");
  ExpectInvalid(lib.cx_request(session, 3, ""), "request is 3");
  ExpectInvalid(lib.cx_plan(session, nullptr), "plan is NULL");
  ExpectInvalid(lib.cx_wait(nullptr), "call is NULL");
  ExpectInvalid(lib.cx_canonical_hook(nullptr, CX_HOOK_SPEC, &spec), "text");
  ExpectInvalid(lib.cx_canonical_hook("noop", 2, &spec), "form is 2");
  ExpectInvalid(
      lib.cx_all_reduce(session, nullptr, 1, CX_FLOAT32, CX_SUM, nullptr),
      "data is NULL");
  ExpectInvalid(lib.cx_all_reduce(session, &data, -1, CX_FLOAT32, 0, nullptr),
                "count is -1");
  ExpectInvalid(lib.cx_all_reduce(session, &data, 1, 8, CX_SUM, nullptr),
                "dtype is 8");
  ExpectInvalid(lib.cx_all_reduce(session, &data, 1, CX_FLOAT32, 3, nullptr),
                "op is 3");
  ExpectInvalid(
      lib.cx_all_gather(session, &data, 1, &data, 0, CX_FLOAT32, nullptr),
      "output takes 0");
  auto ticket = Init<cx_ticket>();
  ticket.micro_batches = -1;
  ExpectInvalid(lib.cx_announce(session, &ticket), "-1 micro_batches");
  ticket = Init<cx_ticket>();
  ticket.flags = CX_TICKET_REPLICATED_CHECKSUM << 1;
  ExpectInvalid(lib.cx_announce(session, &ticket), "a flag");
  cx_parameter parameter = {"w", nullptr, 1, CX_FLOAT32};
  ExpectInvalid(lib.cx_configure(session, &parameter, 1),
                "parameters[0].shape is NULL");
}

TEST(CapiArgumentsTest, ATextThatIsNotUtf8IsNamed) {
  const Job job(1);
  const cx_session session = job[0];
  constexpr char kBad[] = "a\xff";
  const char* keys[] = {"a", kBad};
  const void* value = nullptr;
  size_t size = 0;
  const char* spec = nullptr;
  ExpectInvalid(lib.cx_leave(session, kBad, 0, nullptr), "reason is not UTF-8");
  ExpectInvalid(lib.cx_barrier(session, kBad, 1, nullptr), "tag is not UTF-8");
  ExpectInvalid(lib.cx_store_get(session, kBad, 0, &value, &size, nullptr),
                "key is not UTF-8");
  ExpectInvalid(lib.cx_store_wait(session, keys, 2, 0, nullptr),
                "keys[1] is not UTF-8");
  ExpectInvalid(lib.cx_grant(session, kBad, nullptr), "stream is not UTF-8");
  ExpectInvalid(lib.cx_request(session, CX_REQUEST_STOP, kBad),
                "reason is not UTF-8");
  ExpectInvalid(lib.cx_canonical_hook(kBad, CX_HOOK_SPEC, &spec),
                "text is not UTF-8");
  auto ticket = Init<cx_ticket>();
  ticket.hook = kBad;
  ExpectInvalid(lib.cx_announce(session, &ticket), "hook is not UTF-8");
  ticket = Init<cx_ticket>();
  ticket.skip = kBad;
  ExpectInvalid(lib.cx_announce(session, &ticket), "skip is not UTF-8");
  auto vote = Init<cx_vote>();
  vote.reason = kBad;
  auto decision = Init<cx_decision>();
  ExpectInvalid(lib.cx_decide(session, nullptr, &vote, &decision, nullptr),
                "vote.reason is not UTF-8");
  const cx_parameter parameter = {kBad, nullptr, 0, CX_FLOAT32};
  ExpectInvalid(lib.cx_configure(session, &parameter, 1),
                "parameters[0].name is not UTF-8");
  cx_session joined = 0;
  auto options = OptionsOf(kBad, 0, 1);
  ExpectInvalid(lib.cx_join(&options, &joined, nullptr), "job is not UTF-8");
}

TEST(CapiArgumentsTest, ACallThatFailsAtOnceIsNone) {
  cx_session session = 0;
  auto options = Init<cx_join_options>();
  options.flags = CX_JOIN_NO_ENVIRONMENT;
  cx_call call = 77;
  ExpectInvalid(lib.cx_join(&options, &session, &call), "COXSWAIN_COORDINATOR");
  EXPECT_EQ(call, 0u);
  call = 77;
  ExpectInvalid(lib.cx_barrier(0, "a", 1, &call), "cx_session 0 is not open");
  EXPECT_EQ(call, 0u);
}

TEST(CapiStructsTest, AnOlderAndANewerCallerAreServed) {
  const Job job(1);
  auto info = Init<cx_session_info>();
  // One that knows of nothing after the ranks.
  info.size = offsetof(cx_session_info, reserved);
  info.generation = -7;
  ASSERT_EQ(lib.cx_info(job[0], &info), CX_OK) << Message();
  EXPECT_EQ(info.world_size, 1);
  EXPECT_EQ(info.generation, -7);
  EXPECT_EQ(info.size, offsetof(cx_session_info, reserved));

  struct Newer {
    cx_vote known;
    int64_t more;
  };
  Newer vote{};
  vote.known.size = sizeof(vote);
  auto ticket = Init<cx_ticket>();
  ticket.size = offsetof(cx_ticket, weight);
  ticket.micro_batches = 1;
  auto decision = Init<cx_decision>();
  decision.size = offsetof(cx_decision, reason);
  ASSERT_EQ(lib.cx_announce(job[0], &ticket), CX_OK) << Message();
  vote.more = 1;
  EXPECT_EQ(lib.cx_decide(job[0], nullptr, &vote.known, &decision, nullptr),
            CX_INVALID_ARGUMENT);
  EXPECT_THAT(Message(), HasSubstr("needs a newer library"));
  vote.more = 0;
  EXPECT_EQ(lib.cx_decide(job[0], nullptr, &vote.known, &decision, nullptr),
            CX_OK)
      << Message();
  EXPECT_EQ(decision.commit, 1);
}

TEST(CapiStructsTest, ASizeThatIsNotSetIsNamed) {
  const Job job(1);
  cx_session_info info{};
  ExpectInvalid(lib.cx_info(job[0], &info), "info has the size 0");
  info.size = size_t{1} << 40;
  ExpectInvalid(lib.cx_info(job[0], &info), "info has the size 1099511627776");
}

TEST(CapiJoinTest, ReportsWhatIsWrongWithTheOptions) {
  cx_session session = 7;
  auto options = Init<cx_join_options>();
  options.flags = CX_JOIN_NO_ENVIRONMENT;
  ExpectInvalid(lib.cx_join(&options, &session, nullptr),
                "COXSWAIN_COORDINATOR is not set");
  EXPECT_EQ(session, 0u);
  options = OptionsOf("wrong", 0, 1);
  options.plan = "accumulation=4 hok=bf16";
  ExpectInvalid(lib.cx_join(&options, &session, nullptr), "hok");
  options.plan = "hook=powersdg";
  ExpectInvalid(lib.cx_join(&options, &session, nullptr), "powersgd");
  options.plan = "";
  options.world_size = -2;
  ExpectInvalid(lib.cx_join(&options, &session, nullptr),
                "COXSWAIN_WORLD_SIZE='-2'");
  options = OptionsOf("wrong", 0, 1);
  const cx_setting setting = {nullptr, "1"};
  options.settings = &setting;
  options.setting_count = 1;
  ExpectInvalid(lib.cx_join(&options, &session, nullptr), "settings[0].name");
  options = OptionsOf("wrong", 3, 1);
  options.node = nullptr;
  ExpectInvalid(lib.cx_join(&options, &session, nullptr),
                "the slot 3 and no node");
}

TEST(CapiJoinTest, AFlagStandsForAVariable) {
  // A variable that makes no sense shows whether it is read.
  ASSERT_EQ(setenv("COXSWAIN_PLAIN_DATA", "perhaps", 1), 0);
  cx_session session = 0;
  auto options = OptionsOf("plain", 0, 1);
  options.flags = 0;
  const cx_code without = lib.cx_join(&options, &session, nullptr);
  ExpectInvalid(without, "COXSWAIN_PLAIN_DATA='perhaps'");
  options.flags = CX_JOIN_PLAIN_DATA;
  EXPECT_EQ(lib.cx_join(&options, &session, nullptr), CX_OK) << Message();
  unsetenv("COXSWAIN_PLAIN_DATA");
  lib.cx_close(session);
  options.flags = CX_JOIN_NO_ENVIRONMENT | CX_JOIN_PLAIN_DATA << 1;
  ExpectInvalid(lib.cx_join(&options, &session, nullptr),
                "sets a flag that does not exist");
}

TEST(CapiJoinTest, AnUnreachableCoordinatorIsReportedByTheDeadline) {
  cx_session session = 0;
  auto options = OptionsOf("nobody", 0, 1);
  options.coordinator = "127.0.0.1:1";
  options.join_timeout_ms = 200;
  EXPECT_EQ(InSlices([&](cx_call* call) {
              return lib.cx_join(&options, &session, call);
            }),
            CX_DEADLINE_EXCEEDED);
  EXPECT_THAT(Message(),
              AllOf(HasSubstr("never answered"), HasSubstr("127.0.0.1:1")));
}

TEST(CapiJoinTest, ManifestsThatDifferAreListed) {
  Together(2, [](int slot) {
    auto options = OptionsOf("differ", slot, 2);
    const cx_setting setting = {"seed", slot == 0 ? "17" : "18"};
    options.settings = &setting;
    options.setting_count = 1;
    cx_session session = 0;
    EXPECT_EQ(lib.cx_join(&options, &session, nullptr), CX_FAILED_PRECONDITION);
    EXPECT_EQ(lib.cx_last_error_kind(), CX_ERROR_MANIFESTS_DIFFER);
    EXPECT_THAT(Message(),
                AllOf(HasSubstr("seed"), HasSubstr("17"), HasSubstr("18")));
  });
}

using Clock = std::chrono::steady_clock;

// Counts how often it is called, and ends the wait at the third time.
struct InterruptCounter {
  static int32_t Ask(void* data) {
    auto* const self = static_cast<InterruptCounter*>(data);
    const Clock::time_point now = Clock::now();
    self->longest = std::max(self->longest, now - self->last);
    self->last = now;
    return ++self->asked < 3 ? 0 : 1;
  }

  int asked = 0;
  Clock::time_point last = Clock::now();
  Clock::duration longest{};
};

TEST(CapiInterruptTest, EndsAJoinWithin200MsAndTheCoordinatorForgetsIt) {
  cx_session session = 0;
  auto options = OptionsOf("interrupted", 0, 2);
  InterruptCounter counter;
  lib.cx_set_interrupt(InterruptCounter::Ask, &counter);
  EXPECT_EQ(lib.cx_join(&options, &session, nullptr), CX_CANCELLED);
  const auto late = Clock::now() - counter.last;
  lib.cx_set_interrupt(nullptr, nullptr);
  EXPECT_THAT(Message(), HasSubstr("cancelled the call"));
  EXPECT_EQ(session, 0u);
  EXPECT_EQ(counter.asked, 3);
  // A machine may be busy, or nothing would be called again at all.
  EXPECT_LT(counter.longest, std::chrono::milliseconds(200));
  EXPECT_LT(late, std::chrono::milliseconds(200));
  // Another one takes the place, as soon as the coordinator knows.
  cx_call call = 0;
  cx_code code = CX_ALREADY_EXISTS;
  while (code == CX_ALREADY_EXISTS) {
    code = lib.cx_join(&options, &session, &call);
  }
  ASSERT_EQ(code, CX_AGAIN) << Message();
  cx_session other = 0;
  const auto others = OptionsOf("interrupted", 1, 2);
  EXPECT_EQ(lib.cx_join(&others, &other, nullptr), CX_OK) << Message();
  while (code == CX_AGAIN) code = lib.cx_wait(&call);
  EXPECT_EQ(code, CX_OK) << Message();
  for (const cx_session joined : {session, other}) {
    EXPECT_EQ(lib.cx_leave(joined, "done", 0, nullptr), CX_OK) << Message();
    EXPECT_EQ(lib.cx_close(joined), CX_OK);
  }
}

TEST(CapiInterruptTest, ThatThrowsIsAnErrorOfTheCall) {
  cx_session session = 0;
  auto options = OptionsOf("throws", 0, 2);
  lib.cx_set_interrupt(
      [](void*) -> int32_t { throw std::runtime_error("out of my depth"); },
      nullptr);
  EXPECT_EQ(lib.cx_join(&options, &session, nullptr), CX_INTERNAL);
  lib.cx_set_interrupt(nullptr, nullptr);
  EXPECT_THAT(Message(), HasSubstr("out of my depth"));
}

// Calls the library, whose wait within must not ask it again.
TEST(CapiInterruptTest, MayCallTheLibrary) {
  struct Within {
    cx_session session;
    int depth = 0;
    int asked = 0;
    static int32_t Ask(void* data) {
      auto* const self = static_cast<Within*>(data);
      EXPECT_EQ(++self->depth, 1);
      auto event = Init<cx_event>();
      EXPECT_EQ(lib.cx_next_event(self->session, 120, &event, nullptr),
                CX_DEADLINE_EXCEEDED);
      --self->depth;
      return ++self->asked < 2 ? 0 : 1;
    }
  };
  const Job job(1);
  auto event = Init<cx_event>();
  ASSERT_EQ(lib.cx_next_event(job[0], 10000, &event, nullptr), CX_OK);
  Within within{job[0]};
  const void* value = nullptr;
  size_t size = 0;
  lib.cx_set_interrupt(Within::Ask, &within);
  EXPECT_EQ(lib.cx_store_get(job[0], "none", 60000, &value, &size, nullptr),
            CX_CANCELLED);
  lib.cx_set_interrupt(nullptr, nullptr);
  EXPECT_EQ(within.asked, 2);
}

TEST(CapiCallTest, GoesOnInSlicesUntilItIsCancelled) {
  cx_session session = 0;
  auto options = OptionsOf("slices", 0, 2);
  cx_call call = 0;
  EXPECT_EQ(lib.cx_join(&options, &session, &call), CX_AGAIN);
  EXPECT_NE(call, 0u);
  EXPECT_EQ(lib.cx_wait(&call), CX_AGAIN);
  cx_call same = call;
  EXPECT_EQ(lib.cx_cancel(&call), CX_OK);
  EXPECT_EQ(call, 0u);
  EXPECT_EQ(lib.cx_wait(&same), CX_INVALID_ARGUMENT);
  EXPECT_EQ(session, 0u);
}

TEST(CapiForkTest, TheChildIsRefusedAndTheParentGoesOn) {
  const Job job(1);
  int64_t sum = 0;
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        lib.cx_store_add(job[0], "n", 1, nullptr, nullptr) ==
            CX_FAILED_PRECONDITION &&
        lib.cx_close(job[0]) == CX_FAILED_PRECONDITION &&
        Message().find("was forked from process") != std::string::npos;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(lib.cx_store_add(job[0], "n", 1, &sum, nullptr), CX_OK)
      << Message();
  EXPECT_EQ(sum, 1);
}

TEST(CapiHooksTest, HaveOneCanonicalFormAndErrorsThatHelp) {
  const char* spec = nullptr;
  EXPECT_EQ(
      lib.cx_canonical_hook(" fp16( powersgd(rank=4) )", CX_HOOK_SPEC, &spec),
      CX_OK);
  EXPECT_STREQ(spec, "fp16(powersgd(rank=4))");
  EXPECT_EQ(lib.cx_canonical_hook(
                R"({"comm_hook": "power_sgd", "comm_wrapper": "fp16",
              "comm_state_option": {"matrix_approximation_rank": 2,
                                    "start_powerSGD_iter": 10}})",
                CX_HOOK_YAML, &spec),
            CX_OK)
      << Message();
  EXPECT_STREQ(spec, "fp16(powersgd(rank=2,start_step=10))");
  EXPECT_EQ(lib.cx_canonical_hook("powersdg", CX_HOOK_SPEC, &spec),
            CX_INVALID_ARGUMENT);
  EXPECT_THAT(Message(), AllOf(HasSubstr("powersgd"), HasSubstr("allreduce")));
  const char* json = nullptr;
  EXPECT_EQ(lib.cx_hooks(&json), CX_OK);
  EXPECT_THAT(json, HasSubstr("\"name\": \"powersgd\""));
}

}  // namespace
}  // namespace coxswain::capi_test
